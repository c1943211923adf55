package conformancetest_test

import (
	"testing"

	"github.com/idem-go/idem/conformancetest"
)

// The backend of the example is right, and the suite says so.
func TestDrawer(t *testing.T) { conformancetest.Run(t, harness) }
