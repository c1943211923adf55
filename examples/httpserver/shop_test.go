package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/idem-go/idem/idemhttp"
	"github.com/idem-go/idem/internal/testenv"
	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// The test binary is also the program, so that it can be killed.
func TestMain(m *testing.M) {
	if os.Getenv("SHOP_RUN") != "" {
		main()
		return
	}
	code := m.Run()
	testpg.Stop()
	testredis.StopShared()
	os.Exit(testenv.Leaks(code))
}

// within is how long anything may take that is waited for.
const within = 30 * time.Second

// A process is a running shop.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, store string, packing time.Duration) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-addr", "127.0.0.1:0", "-store", store, "-packing", packing.String())
	cmd.Env = append(os.Environ(), "SHOP_RUN=1")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the shop says %q: %v", line, err)
	}
	_, addr, _ := strings.Cut(strings.TrimSpace(line), "http://")
	return &process{t, cmd, "http://" + strings.TrimSuffix(addr, "/")}
}

// kill is kill -9.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// stop closes the shop as an operator does.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("after SIGTERM: %v", err)
	}
}

// An answer is a response that has been read.
type answer struct {
	status   int
	replayed bool
	header   http.Header
	body     string
}

func (a answer) String() string {
	return fmt.Sprintf("%d, replayed %t: %s", a.status, a.replayed, a.body)
}

// post sends an order, as curl does. A line is a header.
func (p *process) post(client *http.Client, customer, key, body string, lines ...string) (answer, error) {
	req, err := http.NewRequest(http.MethodPost, p.url+"/api/orders", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Shop-User", customer)
	req.Header.Set("Idempotency-Key", `"`+key+`"`)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", resp.Header, string(text)}, err
}

// order is post for orders that get an answer.
func (p *process) order(customer, key, body string) answer {
	p.t.Helper()
	a, err := p.post(http.DefaultClient, customer, key, body)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// read returns what the shop serves to a customer.
func (p *process) read(path, customer string) string {
	p.t.Helper()
	req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("X-Shop-User", customer)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s %v: %s", path, resp.Status, err, text)
	}
	return string(text)
}

// wantOrders fails the test unless a customer has n orders.
func (p *process) wantOrders(customer string, n int64) summary {
	p.t.Helper()
	var sum summary
	text := p.read("/api/orders", customer)
	if err := json.Unmarshal([]byte(text), &sum); err != nil {
		p.t.Fatal(err)
	}
	if sum.Orders != n || int64(len(sum.Last)) != n {
		p.t.Errorf("%s has %d orders, want %d: %s", customer, sum.Orders, n, text)
	}
	return sum
}

// untilInFlight waits until the page shows a claim of a customer.
func (p *process) untilInFlight(customer string) {
	p.t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.read("/state", customer), `id="flights"`) {
		select {
		case <-deadline:
			p.t.Fatal("no order is in flight")
		case <-tick.C:
		}
	}
}

const (
	quick = 20 * time.Millisecond // of packing
	mug   = `{"item":"mug","amount":2}`
)

// onEachStore runs a test on a new storage of each kind.
func onEachStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Run("bolt", func(t *testing.T) {
		t.Parallel()
		test(t, "bolt://"+filepath.Join(testenv.Dir(t), "shop.db"))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, newDatabase(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, "redis://"+testredis.Start(t).Addr+"/0")
	})
}

// newDatabase makes a database for a test, since idem's records are in a schema of
// their own, and returns its URL.
func newDatabase(t *testing.T) string {
	t.Helper()
	server := testpg.URL(t)
	name := "shop_" + strings.ToLower(rand.Text()[:12])
	testpg.Exec(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { testpg.Exec(t, server, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func TestRetries(t *testing.T) {
	onEachStore(t, func(t *testing.T, store string) {
		p := start(t, store, 200*time.Millisecond)

		// Twice.
		first, second := p.order("twice", "k", mug), p.order("twice", "k", mug)
		if first.status != 201 || first.replayed || second.status != 201 || !second.replayed || second.body != first.body {
			t.Errorf("twice: %v, then %v", first, second)
		}
		sum := p.wantOrders("twice", 1)
		if sum.Cents != 1980 || sum.Last[0].Amount != 2 || sum.Last[0].Item != "Mug" || sum.Last[0].Key != "k" {
			t.Errorf("booked is %+v", sum)
		}

		// The same key, with another amount. It is another request of the same
		// customer, and no business of another one.
		if a := p.order("twice", "k", `{"item":"mug","amount":3}`); a.status != 422 || !strings.Contains(a.body, "key-reused") {
			t.Errorf("another amount: %v", a)
		}
		p.wantOrders("twice", 1)
		if a := p.order("other", "k", `{"item":"mug","amount":3}`); a.status != 201 || a.replayed {
			t.Errorf("another customer: %v", a)
		}
		p.wantOrders("other", 1)

		// Ten at once, each from a client that comes back when it is told to.
		patient := &http.Client{Transport: &idemhttp.Transport{MaxAttempts: 20}}
		var group sync.WaitGroup
		answers := make([]answer, 10)
		for i := range answers {
			group.Go(func() {
				a, err := p.post(patient, "ten", "k", mug)
				if err != nil {
					t.Error(err)
				}
				answers[i] = a
			})
		}
		group.Wait()
		ran := 0
		for _, a := range answers {
			if a.status != 201 || a.body != answers[0].body {
				t.Errorf("one of ten: %v", a)
			}
			if !a.replayed {
				ran++
			}
		}
		if ran != 1 {
			t.Errorf("%d of ten ran", ran)
		}
		p.wantOrders("ten", 1)

		// The reply is lost.
		if a, err := p.post(&http.Client{}, "lost", "k", mug, "Debug-Lose-Reply: 1"); err == nil {
			t.Errorf("an answer came through: %v", a)
		}
		p.wantOrders("lost", 1)
		if a := p.order("lost", "k", mug); a.status != 201 || !a.replayed || !strings.Contains(a.body, `"number":1,`) {
			t.Errorf("after a lost reply: %v", a)
		}
		p.wantOrders("lost", 1)

		// An order that is not complete uses up no key.
		if a := p.order("wrong", "k", `{"item":"mug","amount":0}`); a.status != 400 {
			t.Errorf("nothing of it: %v", a)
		}
		if a := p.order("wrong", "k", mug); a.status != 201 || a.replayed {
			t.Errorf("corrected: %v", a)
		}
		p.wantOrders("wrong", 1)
		p.stop()
	})
}

func TestKilled(t *testing.T) {
	onEachStore(t, func(t *testing.T, store string) {
		p := start(t, store, quick)
		first := p.order("ada", "done", mug)
		p.kill()

		// What was answered is there, and is answered again.
		p = start(t, store, time.Hour)
		p.wantOrders("ada", 1)
		if a := p.order("ada", "done", mug); a.status != 201 || !a.replayed || a.body != first.body {
			t.Errorf("after kill -9: %v, want a replay of %v", a, first)
		}

		// An order that was being packed is not there. Its key is taken until the
		// lease is over; then the retry takes over.
		lost := make(chan error, 1)
		go func() {
			a, err := p.post(&http.Client{}, "ada", "killed", mug)
			if err == nil {
				err = fmt.Errorf("it has an answer: %v", a)
			} else {
				err = nil
			}
			lost <- err
		}()
		p.untilInFlight("ada")
		p.kill()
		if err := <-lost; err != nil {
			t.Error(err)
		}
		p = start(t, store, quick)
		p.wantOrders("ada", 1)
		patient := &http.Client{Transport: &idemhttp.Transport{MaxAttempts: 100}}
		if a, err := p.post(patient, "ada", "killed", mug); err != nil || a.status != 201 || a.replayed {
			t.Errorf("the retry: %v %v", a, err)
		}
		if !strings.Contains(p.read("/state", "ada"), "took over") {
			t.Error("the page does not show that the retry took over")
		}
		if a := p.order("ada", "killed", mug); !a.replayed {
			t.Errorf("a retry after that: %v", a)
		}
		if a := p.order("ada", "done", mug); !a.replayed || a.body != first.body {
			t.Errorf("the first order: %v", a)
		}
		p.wantOrders("ada", 2)
		p.stop()
	})
}

// After SIGTERM the orders at hand get their answers.
func TestShutdown(t *testing.T) {
	p := start(t, "bolt://"+filepath.Join(testenv.Dir(t), "shop.db"), time.Second)
	got := make(chan answer, 1)
	go func() {
		a, err := p.post(&http.Client{}, "ada", "k", mug)
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	p.untilInFlight("ada")
	p.stop()
	if a := <-got; a.status != 201 {
		t.Errorf("the order at hand: %v", a)
	}
}

func TestBadArguments(t *testing.T) {
	ctx := context.Background()
	for store, want := range map[string]string{
		"mysql://user:secret@host/db":           "bolt:file",
		"bolt://relative.db":                    "bolt:///path",
		"bolt:":                                 "bolt:///path",
		"redis://127.0.0.1:1/0":                 "refused",
		"postgres://u:secret@127.0.0.1:1/x":     "refused",
		"bolt:" + t.TempDir() + "/no/folder.db": "no such file",
	} {
		err := run(ctx, []string{"-store", store}, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-store %s: %v, want something with %q", store, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in %q", err)
		}
	}
}

// Two shops cannot have one file.
func TestFileInUse(t *testing.T) {
	store := "bolt://" + filepath.Join(testenv.Dir(t), "shop.db")
	start(t, store, quick)
	err := run(t.Context(), []string{"-store", store}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "is the shop open already?") {
		t.Error(err)
	}
}
