package postgres

import (
	"errors"
	"maps"
	"testing"

	"github.com/idem-go/idem"
)

// Stored meta is read as it was written or refused, and what is read can be
// written again.
func FuzzMeta(f *testing.F) {
	f.Add(encodeMeta(map[string]string{"Content-Type": "text/plain", "": "\xff"}))
	f.Add([]byte{metaFormat})
	f.Add([]byte{metaFormat, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 'a'})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		meta, err := decodeMeta(b)
		if err != nil {
			if !errors.Is(err, idem.ErrCorrupt) || meta != nil {
				t.Errorf("%x gave %q, %v", b, meta, err)
			}
			return
		}
		back, err := decodeMeta(encodeMeta(meta))
		if err != nil || !maps.Equal(back, meta) {
			t.Errorf("%q came back as %q, %v", meta, back, err)
		}
	})
}
