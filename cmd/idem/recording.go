package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/idem-go/idem"
)

// maxOutput is how much of a command's output is kept for replays, in bytes of
// the encoded recording: the store's own default for a result.
const maxOutput = 1 << 20

// The Meta of a command's result. The sizes are there for a recording that was
// too large to be kept; metaFormat tells a recording from a body that somebody
// else stored, which is output of one piece.
const (
	metaFormat = "idem-run"
	metaStdout = "stdout-bytes"
	metaStderr = "stderr-bytes"

	recordingFormat = "1"
)

// A channel is one of the two streams that a command writes to.
type channel uint8

const (
	stdout channel = iota
	stderr
	channels
)

func (c channel) String() string {
	return [channels]string{"stdout", "stderr"}[c]
}

// A chunk is a piece of output: what came from one channel before the other
// one had its say.
type chunk struct {
	from channel
	data []byte
}

// A recorder keeps what a command prints, in the order in which it arrives, and
// passes it on. What it keeps is bounded: a recording above limit is dropped as
// a whole, since half an answer is a wrong answer, and only the sizes are
// counted.
type recorder struct {
	limit int
	out   [channels]io.Writer

	mu     sync.Mutex
	data   []byte
	spans  []span // how data is divided between the channels
	size   [channels]int64
	failed [channels]error // of writing to out
	full   bool
}

// A span is a number of bytes that came from one channel.
type span struct {
	from channel
	n    int
}

func newRecorder(limit int, out, err io.Writer) *recorder {
	return &recorder{limit: limit, out: [channels]io.Writer{out, err}}
}

// write records p and passes it on. The recording goes on when nobody reads the
// output any more: the command has its effect all the same, and the next run
// has to replay it.
func (r *recorder) write(from channel, p []byte) {
	if len(p) == 0 {
		return
	}
	// The lock is held while writing, so that what is recorded as the order is
	// the order in which it was shown.
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(from, p)
	if r.failed[from] == nil {
		_, r.failed[from] = r.out[from].Write(p)
	}
}

func (r *recorder) keep(from channel, p []byte) {
	r.size[from] += int64(len(p))
	if r.full {
		return
	}
	last := len(r.spans) - 1
	if last >= 0 && r.spans[last].from == from {
		r.spans[last].n += len(p)
	} else {
		r.spans = append(r.spans, span{from, len(p)})
	}
	// In the encoding a span takes a byte at least, besides its data; the exact
	// size is known only at the end.
	if len(r.data)+len(p)+len(r.spans) > r.limit {
		r.full, r.data, r.spans = true, nil, nil
		return
	}
	r.data = append(r.data, p...)
}

// result returns what is to be stored of a command that ended with code.
func (r *recorder) result(code int) idem.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := idem.Result{Code: code, Meta: map[string]string{
		metaFormat: recordingFormat,
		metaStdout: fmt.Sprint(r.size[stdout]),
		metaStderr: fmt.Sprint(r.size[stderr]),
	}}
	if !r.full {
		res.Body = encode(r.spans, r.data)
	}
	if r.full || len(res.Body) > r.limit {
		res.Body, res.Omitted = nil, true
	}
	return res
}

// undelivered returns why output could not be passed on, or nil.
func (r *recorder) undelivered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for from, err := range r.failed {
		if err != nil {
			return fmt.Errorf("write to %v: %w", channel(from), err)
		}
	}
	return nil
}

// encode returns the body of a recording: the number of spans, each span as its
// length doubled plus its channel, all of them varints, and then the data of
// all spans. No output at all is an empty body.
func encode(spans []span, data []byte) []byte {
	if len(spans) == 0 {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(spans)))
	for _, r := range spans {
		b = binary.AppendUvarint(b, uint64(r.n)<<1|uint64(r.from))
	}
	return append(b, data...)
}

// errRecording means that a stored recording is not one that this program wrote.
var errRecording = errors.New("the recorded output is damaged or was written by a newer version of idem")

// output returns the pieces of output that a result consists of. A body that is
// no recording, because somebody resolved the key by hand, is one piece of
// standard output. The pieces share memory with the result.
func output(r idem.Result) ([]chunk, error) {
	format, recorded := r.Meta[metaFormat]
	switch {
	case len(r.Body) == 0:
		return nil, nil
	case !recorded:
		return []chunk{{stdout, r.Body}}, nil
	case format != recordingFormat:
		return nil, fmt.Errorf("%w: format %q", errRecording, format)
	}
	return decode(r.Body)
}

// decode takes a body that encode has made apart.
func decode(b []byte) ([]chunk, error) {
	count, b, ok := uvarint(b)
	if !ok || count > uint64(len(b)) { // each span takes a byte at least
		return nil, errRecording
	}
	lengths := b
	for range count {
		if _, b, ok = uvarint(b); !ok {
			return nil, errRecording
		}
	}
	chunks := make([]chunk, 0, count)
	for range count {
		var v uint64
		v, lengths, _ = uvarint(lengths)
		n, from := v>>1, channel(v&1)
		if n == 0 || n > uint64(len(b)) {
			return nil, errRecording
		}
		chunks = append(chunks, chunk{from, b[:n:n]})
		b = b[n:]
	}
	if len(b) > 0 {
		return nil, errRecording
	}
	return chunks, nil
}

func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, b, false
	}
	return v, b[n:], true
}

// play writes recorded output to the streams that it came from.
func play(chunks []chunk, out, err io.Writer) error {
	to := [channels]io.Writer{out, err}
	for _, c := range chunks {
		if _, err := to[c.from].Write(c.data); err != nil {
			return fmt.Errorf("write to %v: %w", c.from, err)
		}
	}
	return nil
}
