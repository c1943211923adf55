package bolt

func childWrite([]string) error { return nil }
