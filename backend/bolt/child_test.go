package bolt

const childEnv = "IDEM_BOLT_CHILD"

func runChild(string) int { return 1 }
