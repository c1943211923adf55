package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/testenv"
)

func TestRecordingRoundTrip(t *testing.T) {
	rnd := testenv.Rand(t)
	for range 500 {
		r := newRecorder(maxOutput, io.Discard, io.Discard)
		var want [channels][]byte
		var order []channel
		for range rnd.IntN(20) {
			p := allBytes(rnd.IntN(300))
			from := channel(rnd.IntN(int(channels)))
			r.write(from, p)
			want[from] = append(want[from], p...)
			if n := len(order); len(p) > 0 && (n == 0 || order[n-1] != from) {
				order = append(order, from)
			}
			clear(p) // the writer owns its buffer
		}
		res := r.result(3)
		chunks, err := output(res)
		if err != nil || res.Omitted || res.Code != 3 {
			t.Fatalf("%v, %+v", err, res)
		}
		var got [channels]bytes.Buffer
		if err := play(chunks, &got[stdout], &got[stderr]); err != nil {
			t.Fatal(err)
		}
		for from := range channels {
			if !bytes.Equal(got[from].Bytes(), want[from]) {
				t.Fatalf("%v: got %q, want %q", from, got[from].Bytes(), want[from])
			}
		}
		if len(chunks) != len(order) {
			t.Fatalf("%d chunks, want %d", len(chunks), len(order))
		}
		for i, c := range chunks {
			if c.from != order[i] {
				t.Fatalf("chunk %d is from %v, want %v", i, c.from, order[i])
			}
		}
	}
}

func TestRecordingAtTheLimit(t *testing.T) {
	// 100 bytes of one stream take 103: one for the number of spans, two for
	// the length.
	for size, kept := range map[int]bool{96: true, 97: true, 98: false, 1 << 20: false} {
		var shown bytes.Buffer
		r := newRecorder(100, &shown, io.Discard)
		for range size {
			r.write(stdout, []byte{'x'})
		}
		res := r.result(0)
		if kept == res.Omitted || kept != (len(res.Body) > 0) || len(res.Body) > 100 || shown.Len() != size {
			t.Errorf("%d bytes: omitted %v, %d bytes are kept, %d shown", size, res.Omitted, len(res.Body), shown.Len())
		}
		if cap(r.data) > 1024 || cap(r.spans) > 1024 {
			t.Errorf("%d bytes: the memory is not bounded by the limit", size)
		}
		if got := recordedSize(res, metaStdout); got != sizeText(size) {
			t.Errorf("the size is recorded as %s", got)
		}
	}
}

func sizeText(n int) string { return size(int64(n)) }

// Many short changes between the streams take more room than their data.
func TestRecordingOfManyChanges(t *testing.T) {
	r := newRecorder(1000, io.Discard, io.Discard)
	for i := range 900 {
		r.write(channel(i%2), []byte{'x'})
	}
	if res := r.result(0); !res.Omitted || len(res.Body) > 0 || r.spans != nil {
		t.Errorf("%d bytes are kept in %d spans", len(res.Body), len(r.spans))
	}
}

func TestNoOutput(t *testing.T) {
	res := newRecorder(100, io.Discard, io.Discard).result(0)
	if chunks, err := output(res); len(res.Body) > 0 || len(chunks) > 0 || err != nil || res.Omitted {
		t.Errorf("%+v, %v, %v", res, chunks, err)
	}
}

func TestDamagedRecordings(t *testing.T) {
	whole := encode([]span{{stdout, 200}, {stderr, 3}, {stdout, 1}}, allBytes(204))
	if _, err := decode(whole); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		if chunks, err := decode(whole[:n]); !errors.Is(err, errRecording) {
			t.Errorf("cut to %d bytes: %v, %v", n, chunks, err)
		}
	}
	if _, err := decode(append(whole, 0)); !errors.Is(err, errRecording) {
		t.Errorf("with a byte too many: %v", err)
	}
	rnd := testenv.Rand(t)
	for range 20_000 {
		b := make([]byte, rnd.IntN(30))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		chunks, err := decode(b)
		if err != nil {
			continue
		}
		for _, c := range chunks {
			if len(c.data) == 0 || c.from >= channels {
				t.Fatalf("%x gives %v", b, chunks)
			}
		}
	}
	if _, err := output(idem.Result{Meta: map[string]string{metaFormat: "2"}, Body: whole}); !errors.Is(err, errRecording) {
		t.Errorf("a newer format: %v", err)
	}
}

// A result that was recorded by hand has no format: its body is the output.
func TestResultOfAnotherProgram(t *testing.T) {
	chunks, err := output(idem.Result{Body: []byte("done by hand\n")})
	if err != nil || len(chunks) != 1 || chunks[0].from != stdout || string(chunks[0].data) != "done by hand\n" {
		t.Errorf("%v, %v", chunks, err)
	}
}

// A writer that fails is given no more, and the recording goes on.
func TestRecorderOutlivesItsReader(t *testing.T) {
	w := &failing{}
	r := newRecorder(100, w, io.Discard)
	for range 3 {
		r.write(stdout, []byte("x"))
		r.write(stderr, []byte("y"))
	}
	if err := r.undelivered(); w.calls != 1 || !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), "stdout") {
		t.Errorf("%d calls, %v", w.calls, err)
	}
	chunks, err := output(r.result(0))
	if len(chunks) != 6 || err != nil {
		t.Errorf("%v, %v", chunks, err)
	}
}

type failing struct{ calls int }

func (f *failing) Write([]byte) (int, error) {
	f.calls++
	return 0, io.ErrClosedPipe
}
