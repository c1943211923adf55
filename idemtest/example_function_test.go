package idemtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/memory"
	"github.com/idem-go/idem/idemtest"
)

// A shop is the program: it charges a customer, once for each order.
type shop struct {
	store *idem.Store
	bank  interface {
		Charge(ctx context.Context, key string, body []byte) (receipt string, err error)
	}
}

func (s *shop) charge(ctx context.Context, order string, body []byte) (string, error) {
	out, err := s.store.Do(ctx, order, idem.FingerprintOf(body), func(ctx context.Context, c *idem.Claim) (idem.Result, error) {
		// The bank recognises a charge that it is sent again: that is what
		// makes it one charge even if this process dies right here.
		receipt, err := s.bank.Charge(ctx, c.ChildKey("charge"), body)
		return idem.Result{Code: 201, Body: []byte(receipt)}, err
	})
	return string(out.Result.Body), err
}

// A fakeBank stands for the bank in the test. It shows the kit where the money is
// taken.
type fakeBank struct {
	e        *idemtest.Env
	mu       sync.Mutex
	receipts map[string]string
}

func (b *fakeBank) Charge(ctx context.Context, key string, _ []byte) (receipt string, err error) {
	err = b.e.Effect(ctx, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.receipts[key] == "" {
			b.receipts[key] = fmt.Sprint("receipt ", len(b.receipts)+1)
		}
		receipt = b.receipts[key]
		return nil
	})
	return receipt, err
}

func (b *fakeBank) charges() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.receipts)
}

// testShop is the whole test of a plain function.
func testShop(t *testing.T) {
	idemtest.Run(t, idemtest.Operation{
		Setup: func(t testing.TB, e *idemtest.Env) idemtest.Subject {
			store, err := idem.New(e.Wrap(memory.New()), nil)
			if err != nil {
				t.Fatal(err)
			}
			bank := &fakeBank{e: e, receipts: make(map[string]string)}
			program := &shop{store, bank}
			return idemtest.Subject{
				Send: func(ctx context.Context, r idemtest.Request) (string, error) {
					return program.charge(ctx, r.Key, r.Payload)
				},
				Effects: bank.charges,
			}
		},
		Payload: func(n int) []byte { return fmt.Appendf(nil, `{"account":7,"cents":%d}`, 100+n) },
	})
}

// A function that runs its operation with Store.Do. In the shop's own tests,
// testShop is called TestCharging.
func Example_function() {
	_ = testShop
	// Output:
}
