package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

// goodFile makes a file with n records in several logs and returns its content
// and what is in it.
func goodFile(t testing.TB, n int, opts *Options) (content []byte, records map[string]idem.Record) {
	t.Helper()
	rnd := testenv.Rand(t)
	path := testPath(t)
	b := open(t, path, opts)
	records = make(map[string]idem.Record)
	for i := range n {
		r := randomRecord(rnd)
		r.Token = fmt.Sprintf("t%d.1", i)
		r.TTL = time.Duration(1+rnd.IntN(3)) * 1000 * time.Hour
		r.Result.Body = make([]byte, rnd.IntN(200))
		if i == n/2 {
			r.Result.Body = make([]byte, 10_000) // a page that overflows
		}
		records[numbered(i)] = r
	}
	fill(t, b, n, numbered, func(i int) idem.Record { return records[numbered(i)] })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return readFile(t, path), records
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// BB-6: a file that is damaged, cut or emptied is refused, and stays as it is.
func TestBB6_DamagedFile(t *testing.T) {
	good, _ := goodFile(t, 300, nil)
	page := os.Getpagesize()
	with := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	var foreign []byte
	{
		path := testPath(t)
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("users"))
			return err
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		foreign = readFile(t, path)
	}
	noise := make([]byte, 50_000)
	rnd := testenv.Rand(t)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	newer, older := 0, page // the meta pages
	if good[page+16+48] > good[16+48] {
		newer, older = page, 0
	}
	for _, test := range []struct {
		name    string
		content []byte
		want    error
	}{
		{"random bytes", noise, idem.ErrCorrupt},
		{"five bytes", good[:5], idem.ErrCorrupt},
		{"meta pages zeroed", with(func(b []byte) []byte { clear(b[:2*page]); return b }), idem.ErrCorrupt},
		{"newer meta page zeroed", with(func(b []byte) []byte { clear(b[newer : newer+page]); return b }), idem.ErrCorrupt},
		{"older meta page zeroed", with(func(b []byte) []byte { clear(b[older : older+page]); return b }), idem.ErrCorrupt},
		{"newer meta page damaged", with(func(b []byte) []byte { b[newer+40] ^= 1; return b }), idem.ErrCorrupt},
		{"older meta page twice", with(func(b []byte) []byte { copy(b[newer:newer+page], b[older:older+page]); return b }), idem.ErrCorrupt},
		{"half", good[:len(good)/2], idem.ErrCorrupt},
		{"one page", good[:page], idem.ErrCorrupt},
		{"two pages", good[:2*page], idem.ErrCorrupt},
		{"another program's", foreign, idem.ErrCorrupt},
		{"text", bytes.Repeat([]byte("hello "), 5000), idem.ErrCorrupt},
		{"empty", nil, idem.ErrStoreLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := testPath(t)
			writeFile(t, path, test.content)
			for _, opts := range []*Options{nil, {MustExist: true}, {ReadOnly: true}, {Shared: true}} {
				b, err := Open(path, opts)
				if !errors.Is(err, test.want) {
					t.Fatalf("Open(%+v) = %v, %v; want %v", opts, b, err, test.want)
				}
				mentions(t, err, path)
			}
			if !bytes.Equal(readFile(t, path), test.content) {
				t.Error("the file was changed")
			}
			// In a process of its own, too: nothing that kills it.
			out, _ := childCommand(t, "open", path).Output()
			if !bytes.HasPrefix(out, []byte("error: ")) {
				t.Errorf("a child that opens the file says %q", out)
			}
		})
	}
	t.Run("missing", func(t *testing.T) { open(t, testPath(t), nil) })
	t.Run("never used", func(t *testing.T) {
		path := testPath(t)
		db, err := bbolt.Open(path, 0o600, nil)
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		open(t, path, nil)
	})
	t.Run("a directory", func(t *testing.T) {
		if b, err := Open(testenv.Dir(t), nil); err == nil {
			t.Errorf("Open = %v", b)
		}
	})
}

func childOpen(args []string) error {
	b, err := Open(args[0], nil)
	if err != nil {
		return err
	}
	return b.Close()
}

// A file that is cut anywhere is refused, or has all its records.
func TestTruncatedFile(t *testing.T) {
	good, records := goodFile(t, 200, nil)
	rnd := testenv.Rand(t)
	refused := 0
	for i := range 150 {
		n := rnd.IntN(len(good))
		if i%3 == 0 {
			n -= n % os.Getpagesize()
		}
		if !survives(t, good[:n], records, fmt.Sprintf("cut to %d of %d bytes", n, len(good)), nil) {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no file was refused: the test proves nothing")
	}
}

// Zeroed pages are what some file systems leave after a loss of power.
func TestZeroedPages(t *testing.T) {
	good, records := goodFile(t, 200, nil)
	page := os.Getpagesize()
	for at := 0; at < len(good); at += page {
		bad := bytes.Clone(good)
		clear(bad[at : at+page])
		survives(t, bad, records, fmt.Sprintf("page %d zeroed", at/page), nil)
	}
}

// A flipped bit gives an error or has no effect; no answer is wrong, and nothing
// kills the process.
func TestFlippedBits(t *testing.T) {
	for name, opts := range map[string]*Options{"own": nil, "shared": {Shared: true}} {
		t.Run(name, func(t *testing.T) {
			good, records := goodFile(t, 150, opts)
			rnd := testenv.Rand(t)
			refused := 0
			for range 500 {
				at, bit := flipSomewhere(rnd, good)
				bad := bytes.Clone(good)
				bad[at] ^= bit
				if !survives(t, bad, records, fmt.Sprintf("byte %d ^ %#x", at, bit), opts) {
					refused++
				}
			}
			t.Logf("%d of 500 files were refused", refused)
			if refused < 100 {
				t.Errorf("only %d of 500 files were refused: the bits were flipped where nothing is", refused)
			}
		})
	}
}

// flipSomewhere chooses a bit, preferring bytes that are not zero: the file has
// room that is not used.
func flipSomewhere(rnd *rand.Rand, b []byte) (at int, bit byte) {
	for range 20 {
		at = rnd.IntN(len(b))
		if b[at] != 0 {
			break
		}
	}
	return at, 1 << rnd.IntN(8)
}

// survives opens a damaged file and makes sure that no answer is wrong. It reports
// whether the file could be opened.
func survives(t *testing.T, content []byte, records map[string]idem.Record, what string, opts *Options) bool {
	t.Helper()
	path := testPath(t)
	writeFile(t, path, content)
	b, err := Open(path, opts)
	if err != nil {
		if !errors.Is(err, idem.ErrCorrupt) && !errors.Is(err, idem.ErrStoreLost) {
			t.Errorf("%s: Open: %v", what, err)
		}
		if !bytes.Equal(readFile(t, path), content) {
			t.Errorf("%s: the file was changed", what)
		}
		_ = os.Remove(path)
		return false
	}
	defer os.Remove(path)
	defer b.Close()
	wrong := 0
	for key, want := range records {
		got, err := b.Get(t.Context(), key)
		if err == nil && !sameRecord(got, want) {
			wrong++
		}
	}
	entries, _, err := b.List(t.Context(), idem.Query{Limit: 10 * len(records)})
	if err == nil && len(entries) != len(records) {
		wrong++
	}
	// Writing works too, or says what is wrong.
	swapped, err := b.Swap(t.Context(), "new", "", running("new.1"))
	if err == nil && swapped.Token != "new.1" {
		wrong++
	}
	if wrong > 0 {
		t.Errorf("%s: %d answers are wrong", what, wrong)
	}
	return true
}

// Damage that is done while the file is open gives errors as well.
func TestDamageWhileOpen(t *testing.T) {
	path := testPath(t)
	b, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, b, 300, numbered, func(i int) idem.Record { return completed(fmt.Sprintf("t%d.1", i), 300) })
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Everything but the meta pages is noise now.
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	rnd := testenv.Rand(t)
	noise := make([]byte, info.Size()-int64(2*os.Getpagesize()))
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	if _, err := f.WriteAt(noise, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 300 {
		if r, err := b.Get(ctx, numbered(i)); err == nil {
			t.Fatalf("Get: %+v", r)
		} else if !errors.Is(err, idem.ErrCorrupt) {
			t.Fatalf("Get: %v", err)
		}
	}
	if _, err := b.Swap(ctx, "new", "", running("a.1")); err == nil {
		t.Error("Swap: no error")
	}
	if _, _, err := b.List(ctx, idem.Query{}); err == nil {
		t.Error("List: no error")
	}
	_ = b.Close()
}

// A file that is cut while it is open makes reading fault. That must not kill the
// process.
func TestCutWhileOpen(t *testing.T) {
	path := testPath(t)
	b, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, b, 300, numbered, func(i int) idem.Record { return completed(fmt.Sprintf("t%d.1", i), 300) })
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if r, err := b.Get(t.Context(), numbered(i)); !errors.Is(err, idem.ErrCorrupt) {
			t.Fatalf("Get: %+v, %v; want ErrCorrupt", r, err)
		}
	}
	if _, err := b.Swap(t.Context(), "new", "", running("a.1")); err == nil {
		t.Error("Swap: no error")
	}
	_ = b.Close()
}

// A record that another program has put, or taken away, is noticed when the file
// is opened.
func TestForeignChanges(t *testing.T) {
	good, _ := goodFile(t, 100, nil)
	firstLog := func(tx *bbolt.Tx) (log *bbolt.Bucket) {
		_ = tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			if len(name) > len("idem") && log == nil {
				log = b
			}
			return nil
		})
		return log
	}
	for name, change := range map[string]func(tx *bbolt.Tx) error{
		"record deleted": func(tx *bbolt.Tx) error {
			k, _ := firstLog(tx).Cursor().First()
			return firstLog(tx).Delete(k)
		},
		"record copied": func(tx *bbolt.Tx) error {
			_, v := firstLog(tx).Cursor().First()
			return firstLog(tx).Put(seqKey(999), bytes.Clone(v))
		},
		"records exchanged": func(tx *bbolt.Tx) error {
			log := firstLog(tx)
			k1, v1 := log.Cursor().First()
			k2, v2 := log.Cursor().Last()
			k1, v1, k2, v2 = bytes.Clone(k1), bytes.Clone(v1), bytes.Clone(k2), bytes.Clone(v2)
			return errors.Join(log.Put(k1, v2), log.Put(k2, v1))
		},
		"head deleted":   func(tx *bbolt.Tx) error { return tx.Bucket([]byte("idem")).Delete(headKey) },
		"unknown bucket": func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("idem\x00x")); return err },
		"unknown record": func(tx *bbolt.Tx) error { return firstLog(tx).Put([]byte("x"), []byte("y")) },
		"nested bucket":  func(tx *bbolt.Tx) error { _, err := firstLog(tx).CreateBucket([]byte("12345678")); return err },
		"log deleted": func(tx *bbolt.Tx) error {
			var n []byte
			_ = tx.ForEach(func(name []byte, _ *bbolt.Bucket) error { n = bytes.Clone(name); return nil })
			return tx.DeleteBucket(n)
		},
		"bucket deleted": func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("idem")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := testPath(t)
			writeFile(t, path, good)
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(change), db.Close()); err != nil {
				t.Fatal(err)
			}
			if b, err := Open(path, nil); !errors.Is(err, idem.ErrCorrupt) {
				t.Errorf("Open = %v, %v; want ErrCorrupt", b, err)
			}
		})
	}
}
