package idemtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The places where a process is killed.
const (
	beforeEffect = "just before its effect"
	afterEffect  = "just after its effect, before the result was recorded"
	beforeReply  = "after the operation, before its caller had the answer"
)

var killedBeforeEffect = scenario{
	name:   "Killed/BeforeTheEffect",
	did:    "The process was killed " + beforeEffect + ". Then another one was started and got the same request.",
	users:  "A deployment or a crash in the wrong moment: the order can never be carried out any more.",
	causes: []cause{seenBeforeWork, heldForEver},
	run:    func(c *scene) { c.kill(beforeEffect) },
}

var killedAfterEffect = scenario{
	name:   "Killed/AfterTheEffect",
	did:    "The process was killed " + afterEffect + ". Then another one was started and got the same request.",
	users:  "A deployment or a crash in the wrong moment: " + doubled + ".",
	causes: []cause{unknownOutcome},
	run:    func(c *scene) { c.kill(afterEffect) },
}

var killedBeforeReply = scenario{
	name:   "Killed/BeforeTheReply",
	did:    "The process was killed " + beforeReply + ". Then another one was started and got the same request.",
	users:  "A deployment or a crash in the wrong moment, and the client tries again: " + doubled + ".",
	causes: []cause{"The keys are kept in the memory of the process, and gone with it. Keep them where the data is: idem's backends bolt, postgres and redis.", notStored, outsideClaim},
	run:    func(c *scene) { c.kill(beforeReply) },
}

// These variables of the environment tell a process that it is there to be
// killed.
const (
	envTest = "IDEMTEST_KILL_TEST" // the name of the test
	envJob  = "IDEMTEST_KILL_JOB"  // its job, as JSON
)

// A job is what a process has to do before it is killed.
type job struct {
	Home    string
	Run     int // which call of Run in the test, counted from 1
	Where   string
	Key     string
	Tenant  string
	Callers int
}

// A note is what such a process leaves behind, in Home.
type note struct {
	NoDir    bool // the program keeps nothing that outlives the process
	Survived bool // the program did not come to the place
	Base     int  // effects before the request, by Subject.Effects
	Effects  int  // that went through Env.Effect
	Total    int  // effects after the request, by Subject.Effects
	Answered bool
	Answer   string
	Err      string
}

const noteFile = "note.json"

func isChild(test string) bool { return os.Getenv(envTest) == test }

// runs counts the calls of Run in each test that is running.
var runs = struct {
	sync.Mutex
	of map[string]int
}{of: make(map[string]int)}

func countRun(t *testing.T) int {
	runs.Lock()
	defer runs.Unlock()
	if runs.of[t.Name()]++; runs.of[t.Name()] == 1 {
		t.Cleanup(func() {
			runs.Lock()
			defer runs.Unlock()
			delete(runs.of, t.Name())
		})
	}
	return runs.of[t.Name()]
}

// kill has the request handled by a process that is killed, and again by this
// one.
func (c *scene) kill(where string) {
	c.t.Helper()
	if c.op.known.started && !c.op.known.usesDir {
		c.skipNoDir()
	}
	home := c.t.TempDir()
	r := c.request(0)
	left, output := c.child(job{Home: home, Run: c.op.known.run, Where: where, Key: r.Key, Tenant: r.Tenant, Callers: c.op.Callers})
	switch {
	case left == nil:
		c.t.Errorf("the process that was to be killed ended by itself, before it had sent the request. It said:\n%s", output)
		c.t.FailNow()
	case left.NoDir:
		c.skipNoDir()
	case left.Survived:
		c.skipUnshown(reply{left.Answer, asError(left.Err)})
	case where == beforeReply && !left.Answered:
		c.t.Errorf("a single request, to which nothing was done, got %v: there is nothing to repeat yet. Look at Setup and Send", reply{left.Answer, asError(left.Err)})
		c.t.FailNow()
	}
	c.begin(home)
	c.e.mu.Lock()
	c.e.effects += left.Effects
	c.e.mu.Unlock()
	c.base = left.Base // what the other process did counts
	if n := c.total(); where == beforeReply && n != left.Total {
		c.t.Errorf("there were %d effects when the process was killed, and %d when the next one was started: Subject.Effects has to count what outlives the process, such as what is in Env.Dir", left.Total, n)
		c.t.FailNow()
	}
	again := c.ask(r)
	if where != beforeReply {
		c.afterCrash(reply{err: errors.New("nothing: the process was killed")}, again)
		return
	}
	c.same(reply{answer: left.Answer}, again)
}

func (c *scene) skipNoDir() {
	c.t.Helper()
	c.t.Skip("not tested: Setup does not call Env.Dir, so the program keeps nothing that outlives its process")
}

func asError(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// child starts the test binary to be killed, and returns what it left behind; nil
// if it never came to its job.
func (c *scene) child(j job) (*note, string) {
	c.t.Helper()
	doc, err := json.Marshal(j)
	if err != nil {
		c.t.Fatal(err)
	}
	test := c.op.known.test
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	args := []string{"-test.run=" + exactly(test), "-test.count=1", "-test.v=true"}
	for i, a := range os.Args {
		if i > 0 && !strings.HasPrefix(a, "-test.") {
			args = append(args, a) // flags of the package's own tests
		}
	}
	exe, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), envTest+"="+test, envJob+"="+string(doc))
	cmd.WaitDelay = time.Second // children of its own may have its output open
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		c.t.Fatalf("the process that was to be killed hangs: %v\n%s", err, output)
	}
	doc, err = os.ReadFile(filepath.Join(j.Home, noteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, string(output)
	}
	left := &note{}
	if err == nil {
		err = json.Unmarshal(doc, left)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return left, string(output)
}

// exactly returns the pattern for -test.run that selects only the test.
func exactly(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// beKilled is what Run does in a process that is there to be killed.
func beKilled(t *testing.T, op Operation) {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(envJob)), &j); err != nil {
		t.Fatalf("%s: %v", envJob, err)
	}
	if j.Run != op.known.run {
		return // it is about another one
	}
	op.Callers = j.Callers
	c := &scene{t: t, op: op, key: j.Key}
	c.begin(j.Home)
	if !c.e.usesDir {
		leave(t, j, note{NoDir: true})
		return
	}
	die := func() {
		leave(t, j, note{Base: c.base, Effects: c.e.count()})
		kill()
	}
	switch j.Where {
	case beforeEffect:
		c.e.atEffect(func(context.Context, int) error { die(); return nil }, nil)
	case afterEffect:
		c.e.atEffect(nil, func(context.Context, int) { die() })
	}
	r := c.request(0)
	r.Tenant = j.Tenant
	got := c.send(r)
	left := note{Base: c.base, Effects: c.e.count(), Total: c.total(), Answer: got.answer, Answered: got.answered(), Survived: j.Where != beforeReply}
	if got.err != nil {
		left.Err = got.err.Error()
	}
	leave(t, j, left)
	kill()
}

// leave writes down what has been done.
func leave(t *testing.T, j job, n note) {
	doc, err := json.Marshal(n)
	if err == nil {
		err = os.WriteFile(filepath.Join(j.Home, noteFile), doc, 0o600)
	}
	if err != nil {
		// Not t.Fatal: it may be another goroutine.
		fmt.Fprintln(os.Stderr, "idemtest:", err)
		os.Exit(1)
	}
}

// kill kills this process, as nothing can prepare for.
func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "idemtest:", err)
		os.Exit(1)
	}
	select {} // until it is done
}
