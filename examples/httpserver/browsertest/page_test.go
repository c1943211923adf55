package browsertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// quick is how long packing takes where that does not matter.
const quick = 50 * time.Millisecond

func TestOrder(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	before := ask[string](b, `document.querySelector('#order').elements.idempotency_key.value`)
	b.click("#submit")
	b.untilCount(1)
	b.until(`document.querySelector('#ordered').textContent === 'Order 1 is placed.'`)
	b.untilOutcomes("ran:1")
	if after := ask[string](b, `document.querySelector('#order').elements.idempotency_key.value`); after == before {
		t.Error("the next order has the key of the one before")
	}
	b.click("#submit")
	b.untilCount(2)
	b.untilOutcomes("ran:2")
	s.wantOrders(2)

	// Reload shows the same.
	shown := ask[string](b, `document.querySelector('#live').innerText`)
	b.do(chromedp.Reload())
	if again := ask[string](b, `document.querySelector('#live').innerText`); again != shown {
		t.Errorf("after a reload the page shows\n%s\ninstead of\n%s", again, shown)
	}
	s.wantOrders(2)
}

// Both clicks have the key of the form.
func TestDoubleClick(t *testing.T) {
	s := openShop(t, time.Second)
	b := s.open(true)
	b.click("#submit")
	b.click("#submit")
	b.until(`document.querySelectorAll('#sent .tag.replayed').length === 1`)
	b.untilCount(1)
	s.wantOrders(1)
}

func TestSendTwice(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	b.trial("twice")
	b.untilCount(1)
	if got, want := b.sent(), []string{"201 order 1", "201 replayed: order 1"}; !slices.Equal(got, want) {
		t.Errorf("the browser saw %q, want %q", got, want)
	}
	b.untilOutcomes("ran:1 replayed:1")
	s.wantOrders(1)
}

func TestSendTenAtOnce(t *testing.T) {
	s := openShop(t, 700*time.Millisecond)
	b := s.open(true)
	b.click("#ten")
	b.until(`document.querySelector('#flights code') !== null`) // one claim, seen while it runs
	b.until(`document.querySelector('#trials').getAttribute('aria-busy') === 'false'`)
	b.untilCount(1)
	var ran, replayed, busy int
	for _, line := range b.sent() {
		switch {
		case line == "201 order 1":
			ran++
		case strings.HasSuffix(line, "201 replayed: order 1"):
			replayed++
		default:
			t.Errorf("the browser saw %q", line)
		}
		if strings.HasPrefix(line, "409 in progress") {
			busy++
		}
	}
	if ran != 1 || replayed != 9 || busy == 0 {
		t.Errorf("%d ran, %d replayed, %d were told to come back; want 1, 9 and some", ran, replayed, busy)
	}
	s.wantOrders(1)
}

// Chromium repeats a request by itself when a connection that was used before is
// cut. All of it has the same key.
func TestLoseTheReply(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	b.trial("lose")
	b.untilCount(1)
	if got, want := b.sent(), []string{"no answer, 201 replayed: order 1"}; !slices.Equal(got, want) {
		t.Errorf("the browser saw %q, want %q", got, want)
	}
	b.until(counts + `.startsWith('ran:1 replayed:')`)
	if !ask[bool](b, `document.querySelector('#outcomes [data-outcome=ran]').innerText.includes('reply lost')`) {
		t.Error("that the reply was lost is not shown")
	}
	s.wantOrders(1)
}

func TestSameKeyOtherAmount(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	b.do(chromedp.SetValue(chromedp.CSS("#amount"), "3"))
	b.trial("other")
	b.untilCount(1)
	if got, want := b.sent(), []string{"201 order 1", "422 the key has another order"}; !slices.Equal(got, want) {
		t.Errorf("the browser saw %q, want %q", got, want)
	}
	b.untilOutcomes("conflict:1 ran:1")
	if got := ask[string](b, `document.querySelector('#orders tbody tr').children[2].textContent`); got != "3" {
		t.Errorf("the order has the amount %s, want that of the first request, 3", got)
	}
	s.wantOrders(1)
}

// A page that is reloaded while its order is on the way goes on with the same key.
func TestReloadInTheMiddle(t *testing.T) {
	s := openShop(t, 2*time.Second)
	b := s.open(true)
	b.click("#submit")
	b.until(`document.querySelector('#flights code') !== null`)
	b.do(chromedp.Reload())
	b.until(`document.querySelector('#ordered').textContent === 'Order 1 is placed.'`)
	b.untilCount(1)
	s.wantOrders(1)
}

// The shop is killed while it packs an order, and comes back. The page sends the
// order until it is placed.
func TestShopIsKilled(t *testing.T) {
	s := openShop(t, time.Hour)
	b := s.open(true)
	b.click("#submit")
	b.until(`document.querySelector('#flights code') !== null`)
	s.kill()
	b.until(`document.querySelector('#sent .tag.unheard') !== null`)
	s.start(quick)
	b.until(`document.querySelector('#ordered').textContent === 'Order 1 is placed.'`)
	b.untilCount(1)
	if !ask[bool](b, `document.querySelector('#outcomes [data-outcome=ran]').innerText.includes('took over')`) {
		t.Error("that the request took over is not shown")
	}
	s.wantOrders(1)
}

// Customers have orders and keys of their own.
func TestCustomers(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	b.click("#submit")
	b.untilCount(1)
	b.do(chromedp.SetValue(chromedp.CSS("#user"), "grace"))
	b.click(".who button")
	b.until(`document.querySelector('#orders-title').textContent === 'Orders of grace'`)
	b.untilCount(0)
	b.click("#submit")
	b.untilCount(1)
	s.wantOrders(1) // of ada, who is meant without a name
}

// plainOrder fills in the form of a page without script, and sends it.
func plainOrder(b *browser, amount int) {
	b.t.Helper()
	ask[bool](b, fmt.Sprintf(`(() => {
		const form = document.querySelector('#order');
		form.querySelector('#item').value = 'mug';
		form.querySelector('#amount').value = '%d';
		form.querySelector('#submit').click();
		return true;
	})()`, amount))
}

const placed = `document.querySelector('#ordered')?.textContent === 'Order 1 is placed.'`

func TestPlainFormSentTwice(t *testing.T) {
	s := openShop(t, time.Second)
	b := s.open(false)
	if ask[bool](b, `!document.querySelector('#trials').hidden`) {
		t.Error("there are buttons that do nothing without script")
	}
	// One of the two answers is for another window, or the browser would forget
	// the first request.
	ask[bool](b, `document.querySelector('#order').target = '_blank', true`)
	plainOrder(b, 2)
	ask[bool](b, `document.querySelector('#order').target = '', true`)
	plainOrder(b, 2)
	b.until(placed)
	s.until(`data-outcome="replayed"`) // the page does not change by itself
	s.wantOrders(1)

	// Reloading the page shows it, and does not send the form.
	b.do(chromedp.Reload())
	b.until(placed)
	b.untilOutcomes("ran:1 replayed:1")
	s.wantOrders(1)
}

// Going back shows the form as it was, whether the browser has kept the page or has
// to make it again.
func TestPlainFormBackAndAgain(t *testing.T) {
	t.Run("kept", func(t *testing.T) {
		testBackAndAgain(t)
	})
	t.Run("made again", func(t *testing.T) {
		testBackAndAgain(t, chromedp.Flag("disable-features", "Translate,BackForwardCache"))
	})
}

func testBackAndAgain(t *testing.T, more ...chromedp.ExecAllocatorOption) {
	s := openShop(t, quick)
	chromium, stop := startChromium(t, more...)
	t.Cleanup(stop)
	b := s.openIn(chromium, false)
	const key = `document.querySelector('[name=idempotency_key]').value`
	first := ask[string](b, key)
	plainOrder(b, 2)
	b.until(placed)
	for range 2 {
		b.back("/")
		if got := ask[string](b, key); got != first {
			t.Fatalf("going back shows a form with the key %s instead of %s", got, first)
		}
		plainOrder(b, 2)
		b.until(placed)
	}
	b.untilOutcomes("ran:1 replayed:2")
	s.wantOrders(1)

	// Ordering something else with the old form is a conflict.
	b.back("/")
	plainOrder(b, 3)
	b.until(`document.querySelector('#problem')?.textContent === 'This form was sent before'`)
	s.wantOrders(1)

	// A new page has a form for the next order.
	b.click("main a")
	b.until(`document.querySelector('#order') !== null`)
	plainOrder(b, 3)
	b.until(`document.querySelector('#ordered')?.textContent === 'Order 2 is placed.'`)
	s.wantOrders(2)
}

// Every control has a label, and the page fits a phone.
func TestPageIsUsable(t *testing.T) {
	s := openShop(t, quick)
	b := s.open(true)
	b.trial("other")
	b.trial("twice")
	b.untilCount(2)
	unlabelled := ask[string](b, `[...document.querySelectorAll('input:not([type=hidden]), select')].filter((e) => e.labels.length !== 1).map((e) => e.outerHTML).join('\n') +
		[...document.querySelectorAll('button')].filter((e) => e.textContent.trim() === '').map((e) => e.outerHTML).join('\n')`)
	if unlabelled != "" {
		t.Errorf("without a label: %s", unlabelled)
	}
	for _, width := range []int64{1280, 768, 360, 320} {
		b.do(chromedp.EmulateViewport(width, 800))
		if over := ask[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
			t.Errorf("at a width of %d the page is %d too wide", width, over)
		}
	}
	external := ask[string](b, `performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith(location.origin)).join(' ')`)
	if external != "" {
		t.Errorf("the page loads %s", external)
	}
}
