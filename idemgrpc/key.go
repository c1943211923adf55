package idemgrpc

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"

	"github.com/idem-go/idem"
)

// Names of metadata.
const (
	// KeyMetadata names the operation: 1 to [idem.MaxKey] visible ASCII
	// characters.
	KeyMetadata = "idempotency-key"

	// ReplayedHeader is "true" in the headers of an answer that was stored
	// before, and absent from the first one.
	ReplayedHeader = "idempotent-replayed"
)

var errNoKey = errors.New("there is no " + KeyMetadata)

// keyIn returns the key that metadata has; errNoKey if it has none.
func keyIn(md metadata.MD) (string, error) {
	switch values := md.Get(KeyMetadata); len(values) {
	case 0:
		return "", errNoKey
	case 1:
		return values[0], checkKey(values[0])
	default:
		return "", fmt.Errorf("%w: there are %d of them; a call has one", idem.ErrKey, len(values))
	}
}

// checkKey reports what is wrong with a key. Metadata carries ASCII, and loses
// spaces at its ends; so a key has none.
func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", idem.ErrKey)
	case len(key) > idem.MaxKey:
		return fmt.Errorf("%w: it has %d characters, the limit is %d", idem.ErrKey, len(key), idem.MaxKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return fmt.Errorf("%w: it has the byte %#02x at %d; visible ASCII characters are allowed", idem.ErrKey, key[i], i)
		}
	}
	return nil
}
