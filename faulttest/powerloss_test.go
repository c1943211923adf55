package faulttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/internal/testenv"
)

// A disk is a file that remembers in which order it was written and flushed, so
// that what a loss of power leaves behind can be made up for any moment.
type disk struct {
	fs.MemRegularFile

	mu  sync.Mutex
	log []diskOp
}

// A diskOp is a write, a change of the size, or, if it is neither, a flush.
type diskOp struct {
	at    int64
	data  []byte
	size  int64
	sized bool
}

func (o diskOp) flush() bool { return o.data == nil && !o.sized }

var (
	_ fs.NodeWriter    = (*disk)(nil)
	_ fs.NodeFsyncer   = (*disk)(nil)
	_ fs.NodeSetattrer = (*disk)(nil)
)

func (d *disk) note(o diskOp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, o)
}

func (d *disk) length() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

func (d *disk) Write(ctx context.Context, f fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	d.note(diskOp{at: at, data: slices.Clone(data)})
	return d.MemRegularFile.Write(ctx, f, data, at)
}

func (d *disk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.note(diskOp{})
	return 0
}

func (d *disk) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		d.note(diskOp{size: int64(size), sized: true})
	}
	return d.MemRegularFile.Setattr(ctx, f, in, out)
}

// apply returns the image after the operation, or after the part of it for which
// kept is true: a write goes out in sectors.
func (o diskOp) apply(image []byte, kept func() bool) []byte {
	const sector = 512
	resize := func(size int64) {
		if grow := size - int64(len(image)); grow > 0 {
			image = append(image, make([]byte, grow)...)
		}
	}
	if o.sized {
		if kept() {
			resize(o.size)
			image = image[:o.size]
		}
		return image
	}
	for from := 0; from < len(o.data); {
		to := min(len(o.data), from+sector-int((o.at+int64(from))%sector))
		if kept() {
			resize(o.at + int64(to))
			copy(image[o.at+int64(from):], o.data[from:to])
		}
		from = to
	}
	return image
}

func always() bool { return true }

// An ack is what the program was told before so many operations of the disk.
type ack struct {
	before int
	key    string
	result string // "" for a claim
}

// crashChildEnv makes this binary a process that writes to the bolt file in it.
const crashChildEnv = "IDEM_FAULTTEST_BOLT"

// crashChild claims and completes keys, and writes a line for each answer.
func crashChild(path string, out io.Writer) error {
	b, err := bolt.Open(path, nil)
	if err != nil {
		return err
	}
	s, err := idem.New(b, nil)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			for n := range 100 {
				key := fmt.Sprintf("%d-%d", i, n)
				c, _, err := s.Begin(ctx, key, own)
				if err != nil {
					errs[i] = err
					return
				}
				fmt.Fprintf(out, "%s\n", key)
				result := strings.Repeat(key+" ", 1+n*7)
				if err := s.Complete(ctx, c, idem.Result{Body: []byte(result)}); err != nil {
					errs[i] = err
					return
				}
				fmt.Fprintf(out, "%s %s\n", key, result)
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, b.Close())...)
}

// recorded runs crashChild on a recording disk.
func recorded(t *testing.T) (start []byte, d *disk, acks []ack) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		testenv.Skip(t, "fuse", "a recording disk needs root and /dev/fuse (%v)", err)
	}
	path := filepath.Join(testenv.Dir(t), "idem.db")
	b, err := bolt.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if start, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	d = &disk{}
	d.Data, d.Attr.Mode = slices.Clone(start), 0o600
	root, mount := &fs.Inode{}, t.TempDir()
	server, err := fs.Mount(mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("idem.db", root.NewPersistentInode(ctx, d, fs.StableAttr{Mode: syscall.S_IFREG}), true)
		},
	})
	if err != nil {
		testenv.Skip(t, "fuse", "no file system can be mounted: %v", err)
	}
	defer func() {
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	}()
	// The file is mapped into the memory of who uses it. Were that this process,
	// it would wait for itself.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashChildEnv+"="+filepath.Join(mount, "idem.db"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		key, result, _ := strings.Cut(lines.Text(), " ")
		// What is on the disk by now may be more than it was at the answer, which
		// asks less of the storage, not more.
		acks = append(acks, ack{d.length(), key, result})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return start, d, acks
}

// A crash is how a loss of power at one moment left the disk.
type crash struct {
	moment int
	image  []byte
}

// crashes makes up n crashes and calls see for each. What was written since the
// last flush is there, or not, or in part, by sector.
func crashes(rnd *rand.Rand, start []byte, log []diskOp, n int, see func(crash)) {
	moments := make([]int, n)
	for i := range moments {
		moments[i] = rnd.IntN(len(log) + 1)
	}
	slices.Sort(moments)
	durable, flushed := slices.Clone(start), 0
	for i, moment := range moments {
		for at := flushed; at < moment; at++ {
			if !log[at].flush() {
				continue
			}
			for ; flushed <= at; flushed++ {
				durable = log[flushed].apply(durable, always)
			}
		}
		kept := []func() bool{always, func() bool { return false }, func() bool { return rnd.IntN(2) == 0 }}[i%3]
		image := slices.Clone(durable)
		for _, o := range log[flushed:moment] {
			image = o.apply(image, kept)
		}
		see(crash{moment, image})
	}
}

// after says what is wrong with the storage after a crash; nil if it has all that
// a caller was told.
func (c crash) after(path string, acks []ack) (err error) {
	if err := os.WriteFile(path, c.image, 0o600); err != nil {
		return err
	}
	b, err := bolt.Open(path, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for _, a := range acks {
		if a.before > c.moment {
			continue
		}
		r, err := b.Get(context.Background(), a.key)
		if err != nil {
			return err
		}
		if r.Status == 0 || a.result != "" && (r.Status != idem.Completed || string(r.Result.Body) != a.result) {
			return fmt.Errorf("%q was answered with %.20q, and is %v, %.20q", a.key, a.result, r.Status, r.Result.Body)
		}
	}
	return nil
}

// checkPages asks the engine whether its pages are sound.
func checkPages(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	all := []error{}
	err = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			all = append(all, err)
		}
		return nil
	})
	return errors.Join(append(all, err, db.Close())...)
}

// Reliability row 13: the power fails at any moment. What was answered is there,
// and the file opens. A disk that does not flush what it is told to would show.
func TestRow13_PowerLoss(t *testing.T) {
	rnd := testenv.Rand(t)
	start, d, acks := recorded(t)
	if len(acks) != 800 {
		t.Fatalf("there were %d answers, want 800", len(acks))
	}
	path := filepath.Join(testenv.Dir(t), "crashed.db")
	n, told, wrong := times(1000), 0, 0
	crashes(rnd, start, d.log, n, func(c crash) {
		for _, a := range acks {
			if a.before <= c.moment {
				told++
			}
		}
		err := c.after(path, acks)
		if err == nil {
			err = checkPages(path)
		}
		if err != nil {
			wrong++
			t.Errorf("after a loss of power at operation %d of %d: %v", c.moment, len(d.log), err)
		}
	})
	if told < 100*n {
		t.Errorf("there were only %d answers before %d crashes", told, n)
	}
	t.Logf("%d crashes among %d operations of the disk, %d answers before them", n, len(d.log), told)

	reportRounds("loss of power at any moment", "bolt", n, wrong)

	lying := slices.DeleteFunc(slices.Clone(d.log), diskOp.flush)
	for i := range acks { // the moments are counted without flushes now
		flushes := 0
		for _, o := range d.log[:acks[i].before] {
			if o.flush() {
				flushes++
			}
		}
		acks[i].before -= flushes
	}
	noticed := 0
	crashes(rnd, start, lying, 30, func(c crash) {
		if c.after(path, acks) != nil {
			noticed++
		}
	})
	if noticed < 10 {
		t.Errorf("a disk that flushes nothing was noticed in %d crashes of 30 only", noticed)
	}
}
