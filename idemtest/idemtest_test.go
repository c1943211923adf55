package idemtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemtest"
)

// A bank recognises repetitions by the key that it is sent. Its charges are files,
// which outlive the program.
type bank struct{ dir string }

func (b bank) charge(key string) error {
	f, err := os.OpenFile(filepath.Join(b.dir, key), os.O_CREATE|os.O_RDONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

func (b bank) count() int {
	charges, _ := os.ReadDir(b.dir)
	return len(charges)
}

func payment(n int) []byte { return fmt.Appendf(nil, `{"account":7,"cents":%d}`, 100+n) }

// charging is a program as it should be, on a backend of any kind.
func charging(open func(t testing.TB, e *idemtest.Env) (b idem.Backend, dir string)) idemtest.Operation {
	return idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			backend, dir := open(t, e)
			store, err := idem.New(e.Wrap(backend), nil)
			if err != nil {
				t.Fatal(err)
			}
			b := bank{filepath.Join(dir, "bank")}
			if err := os.MkdirAll(b.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					out, err := store.Scoped(r.Tenant).Do(ctx, r.Key, idem.FingerprintOf(r.Payload), func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
						key := c.ChildKey("charge")
						err := e.Effect(ctx, func() error { return b.charge(key) })
						return idem.Result{Code: 201, Body: []byte("receipt " + key)}, err
					})
					return string(out.Result.Body), err
				},
				Effects: b.count,
			}
		},
		Payload: payment,
		Tenants: []string{"alice", "bob"},
	}
}

func TestMemory(t *testing.T) {
	idemtest.Run(t, charging(func(t testing.TB, _ *idemtest.Env) (idem.Backend, string) { return memory.New(), t.TempDir() }))
}

func TestBolt(t *testing.T) { idemtest.Run(t, onBolt("idem.db")) }

// The process that is killed works on the same operation as the one that comes
// after it, also where a test has two.
func TestTwoOperations(t *testing.T) {
	idemtest.Run(t, onBolt("first.db"))
	idemtest.Run(t, onBolt("second.db"))
}

func onBolt(name string) idemtest.Operation {
	return charging(func(t testing.TB, e *idemtest.Env) (idem.Backend, string) {
		dir := filepath.Join(e.Dir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b, err := bolt.Open(filepath.Join(dir, "idem.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b, dir
	})
}

// The examples are tests that pass.
func TestExampleFunction(t *testing.T) { testShop(t) }
func TestExampleHandler(t *testing.T)  { testOrders(t) }
func TestExampleConsumer(t *testing.T) { testConsumer(t) }
