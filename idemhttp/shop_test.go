package idemhttp_test

const shopEnv = "IDEM_HTTP_SHOP"

func runShop() int { return 2 }
