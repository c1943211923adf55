package redis

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
)

// How much one call of List does.
const (
	listLimit = 1000 // entries, where the query has no limit
	listScans = 100  // scans, so that a call ends
	scanLeast = 100  // keys that one scan looks at
)

// List implements [idem.Lister] by SCAN over all masters, in no order. It goes
// through all keys of the database, those of others too. In a cluster, records
// whose slot moves to another node meanwhile may be missed or come twice, and a
// cursor is an error when its node is no master any more.
func (b *Backend) List(ctx context.Context, q idem.Query) (entries []idem.Entry, next string, err error) {
	const op = "list"
	err = b.promptly(ctx, op, func(ctx context.Context) (err error) {
		if entries, next, err = b.list(ctx, q); err != nil {
			return err
		}
		return b.touch(ctx, op) // what is not there was not lost
	})
	if err != nil {
		return nil, "", err // what a call left behind may still write to the others
	}
	return entries, next, nil
}

func (b *Backend) list(ctx context.Context, q idem.Query) ([]idem.Entry, string, error) {
	at, err := parseCursor(q.Cursor)
	if err != nil {
		return nil, "", fmt.Errorf("redis: list: %w", err)
	}
	nodes, err := b.masters(ctx)
	if err != nil {
		return nil, "", failed("list", err, 1)
	}
	n := 0
	if q.Cursor != "" {
		n = slices.IndexFunc(nodes, func(n node) bool { return n.addr == at.node })
		if n < 0 {
			return nil, "", fmt.Errorf("redis: list: the node %s, which the cursor leads to, is no master any more; list again from the beginning", at.node)
		}
	}
	limit := q.Limit
	if limit < 1 {
		limit = listLimit
	}
	at.node = nodes[n].addr
	var entries []idem.Entry
	for range listScans {
		names := at.names
		if len(names) == 0 && !at.done {
			if names, err = b.scan(ctx, nodes[n], &at, q, limit); err != nil {
				return nil, "", failed("list", err, 1)
			}
		}
		// Scan returns more than it is asked for when it likes, and it cannot go
		// back: what is too much goes into the cursor.
		at.names = nil
		if room := limit - len(entries); len(names) > room {
			names, at.names = names[:room], names[room:]
		}
		found, err := b.read(ctx, nodes[n], names, q)
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, found...)
		if at.done && len(at.names) == 0 {
			if n++; n == len(nodes) {
				return entries, "", nil
			}
			at = cursor{node: nodes[n].addr}
		}
		if len(entries) == limit {
			break
		}
	}
	return entries, at.String(), nil
}

// A node is a master that is scanned.
type node struct {
	addr   string
	client goredis.UniversalClient
}

// masters returns the nodes in an order that is the same in every call.
func (b *Backend) masters(ctx context.Context) ([]node, error) {
	c, ok := b.client.(*goredis.ClusterClient)
	if !ok {
		return []node{{client: b.client}}, nil
	}
	var mu sync.Mutex
	var nodes []node
	err := c.ForEachMaster(ctx, func(_ context.Context, c *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node{c.Options().Addr, c})
		return nil
	})
	if err == nil && len(nodes) == 0 {
		err = errors.New("the cluster has no master")
	}
	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.addr, b.addr) })
	return nodes, err
}

// scan returns the names of the next keys, and moves the cursor.
func (b *Backend) scan(ctx context.Context, n node, at *cursor, q idem.Query, limit int) ([]string, error) {
	match := globQuote(b.opts.Prefix) + "{????}" + globQuote(q.Prefix) + "*"
	names, next, err := n.client.Scan(ctx, at.scan, match, int64(min(max(limit, scanLeast), listLimit))).Result()
	at.scan, at.done = next, next == 0
	return names, err
}

// globQuote returns a pattern that matches s and nothing else.
func globQuote(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(`*?[]^-\`, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// read returns the records with the names that match the query.
func (b *Backend) read(ctx context.Context, n node, names []string, q idem.Query) ([]idem.Entry, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := n.client.Pipeline()
	values := make([]*goredis.StringCmd, len(names))
	for i, name := range names {
		values[i] = pipe.Get(ctx, name)
	}
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); now.Err() != nil {
		return nil, failed("list", err, 1)
	}
	entries := make([]idem.Entry, 0, len(names))
	for i, name := range names {
		v, err := values[i].Result()
		if refusal(err) == "MOVED" || refusal(err) == "ASK" {
			continue // it is another node's by now
		}
		if err == goredis.Nil {
			continue
		}
		if err != nil {
			return nil, failed("list", err, 1)
		}
		key, ok := b.keyOf(name)
		if !ok {
			continue // another program's
		}
		r, err := b.open(key, answer{now: now.Val().UnixMicro(), value: v})
		if err != nil {
			return nil, err
		}
		if !r.Expired() && q.Matches(key, r) {
			entries = append(entries, idem.Entry{Key: key, Record: r})
		}
	}
	return entries, nil
}

// keyOf returns the key whose record has a name.
func (b *Backend) keyOf(of string) (key string, ok bool) {
	if len(of) < len(b.opts.Prefix)+keyTagLen {
		return "", false
	}
	key = of[len(b.opts.Prefix)+keyTagLen:]
	return key, name(b.opts.Prefix, key) == of
}

// A cursor says where a listing goes on.
type cursor struct {
	node  string   // address; "" for a server alone
	scan  uint64   // Redis's own cursor
	done  bool     // the node has been scanned to its end
	names []string // found by scans so far, and not returned
}

const cursorBegin = "redis-"

// String returns the cursor as text. It has a checksum, since another backend's,
// or half of one, must not pass for it.
func (c cursor) String() string {
	v := appendBytes(nil, c.node)
	v = binary.AppendUvarint(v, c.scan)
	done := byte(0)
	if c.done {
		done = 1
	}
	v = append(v, done)
	v = binary.AppendUvarint(v, uint64(len(c.names)))
	for _, name := range c.names {
		v = appendBytes(v, name)
	}
	v = binary.BigEndian.AppendUint32(v, crc32.Checksum(v, castagnoli))
	return cursorBegin + base64.RawURLEncoding.EncodeToString(v)
}

func parseCursor(s string) (c cursor, err error) {
	if s == "" {
		return cursor{}, nil
	}
	wrong := fmt.Errorf("the cursor %.40q is not from this backend", s)
	text, ok := strings.CutPrefix(s, cursorBegin)
	v, err := base64.RawURLEncoding.DecodeString(text)
	end := len(v) - checksumLen
	if !ok || err != nil || end < 0 || crc32.Checksum(v[:end], castagnoli) != binary.BigEndian.Uint32(v[end:]) {
		return cursor{}, wrong
	}
	in := reader{b: v[:end]}
	c.node = string(in.slice())
	c.scan = in.uvarint()
	c.done = in.byte() == 1
	for range min(in.uvarint(), uint64(len(v))) {
		c.names = append(c.names, string(in.slice()))
	}
	if in.short || len(in.b) > 0 {
		return cursor{}, wrong
	}
	return c, nil
}
