package main

import (
	"os"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Leaks(m.Run())) }
