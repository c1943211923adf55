package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt maps the file and believes what it finds: its pages have no checksums,
// and damage ends in a panic, in a fault that kills the process, in an endless
// loop, or in an answer that is wrong. It even checks some of the pages in a
// goroutine of its own, where nobody can recover a panic. So the structure of a
// file is checked here, with ordinary reads, before bbolt gets it. The records
// have checksums of their own; see layout.go.
//
// A file of bbolt's is a sequence of pages. The first two are meta pages, which
// take turns: a commit writes the older one. Each says where the root bucket is.
// A bucket is a tree of branch and leaf pages; a leaf can have buckets inside.

const (
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	noFreelist  = ^uint64(0)

	pageHeaderLen    = 16
	elementLen       = 16
	bucketHeaderLen  = 16
	metaLen          = 64
	branchPage       = 0x01
	leafPage         = 0x02
	freelistPage     = 0x10
	bucketElement    = 0x01
	maxDepth         = 64
	minPage, maxPage = 1 << 10, 64 << 10
)

// A meta is what a meta page says.
type meta struct {
	pageSize uint64
	root     uint64 // page of the root bucket
	freelist uint64 // page of the free list, or noFreelist
	pages    uint64 // how many pages are in use, from the first on
	txid     uint64
}

var native = binary.NativeEndian

// readMeta reads both meta pages and returns the newer one. Both must be good:
// bbolt would do with one, and thereby take back the last commit without a word
// if it is the newer one that is damaged.
func readMeta(f io.ReaderAt) (meta, error) {
	m0, err := readMetaPage(f, 0)
	if err != nil {
		return m0, fmt.Errorf("its first meta page is damaged: %w", err)
	}
	m1, err := readMetaPage(f, int64(m0.pageSize))
	if err != nil {
		return m1, fmt.Errorf("its second meta page is damaged: %w", err)
	}
	newer, older, olderPage := m0, m1, uint64(1)
	if m1.txid > m0.txid {
		newer, older, olderPage = m1, m0, 0
	}
	// The pages take turns, so their numbers follow each other. Only in a copy
	// made by Tx.WriteTo they can be in each other's place, and then the first
	// commit replaces the newer one.
	gap := newer.txid - older.txid
	inPlace := older.txid%2 == olderPage
	if m0.pageSize != m1.pageSize || gap != 1 && (gap != 2 || inPlace) {
		return newer, fmt.Errorf("its meta pages, of the transactions %d and %d, do not belong together", m0.txid, m1.txid)
	}
	return newer, nil
}

func readMetaPage(f io.ReaderAt, at int64) (m meta, err error) {
	var page [pageHeaderLen + metaLen]byte
	if _, err := f.ReadAt(page[:], at); err != nil {
		return m, err
	}
	b := page[pageHeaderLen:]
	sum := fnv.New64a()
	sum.Write(b[:metaLen-8])
	switch {
	case native.Uint32(b) != metaMagic:
		return m, errors.New("it is not one of a bbolt file")
	case native.Uint32(b[4:]) != metaVersion:
		return m, fmt.Errorf("it has the format %d, this program knows %d", native.Uint32(b[4:]), metaVersion)
	case native.Uint64(b[metaLen-8:]) != sum.Sum64():
		return m, errors.New("its checksum is wrong")
	}
	m = meta{
		pageSize: uint64(native.Uint32(b[8:])),
		root:     native.Uint64(b[16:]),
		freelist: native.Uint64(b[32:]),
		pages:    native.Uint64(b[40:]),
		txid:     native.Uint64(b[48:]),
	}
	if m.pageSize < minPage || m.pageSize > maxPage || m.pageSize&(m.pageSize-1) != 0 {
		return m, fmt.Errorf("it has the page size %d", m.pageSize)
	}
	return m, nil
}

// checkMeta checks the meta pages and that the file has all the pages they speak
// of.
func checkMeta(f *os.File) (meta, error) {
	m, err := readMeta(f)
	if err != nil {
		return m, err
	}
	info, err := f.Stat()
	if err != nil {
		return m, err
	}
	if have := uint64(info.Size()) / m.pageSize; have < m.pages {
		return m, fmt.Errorf("it has been cut: it has %d pages of the %d in use", have, m.pages)
	}
	return m, nil
}

// checkStructure checks every page that bbolt could follow a reference to.
func checkStructure(f *os.File) error {
	m, err := checkMeta(f)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if m.pages > uint64(info.Size()) { // checkMeta has said so; for the make below
		return errors.New("it has been cut")
	}
	c := checker{file: f, meta: m, used: make([]bool, m.pages)}
	if err := c.tree(m.root, nil, nil, 0); err != nil {
		return err
	}
	return c.freelist()
}

type checker struct {
	file *os.File
	meta meta
	used []bool // by page
	buf  []byte
}

// page reads a page with those that it overflows into, and marks them as used.
// The result is valid until the next call.
func (c *checker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.meta.pages {
		return nil, fmt.Errorf("there is a reference to page %d of %d", id, c.meta.pages)
	}
	size := c.meta.pageSize
	if uint64(len(c.buf)) < size {
		c.buf = make([]byte, size)
	}
	b := c.buf[:size]
	if _, err := c.file.ReadAt(b, int64(id*size)); err != nil {
		return nil, err
	}
	overflow := uint64(native.Uint32(b[12:]))
	if got := native.Uint64(b); got != id || overflow >= c.meta.pages-id {
		return nil, fmt.Errorf("page %d is damaged", id)
	}
	for p := id; p <= id+overflow; p++ {
		if c.used[p] {
			return nil, fmt.Errorf("page %d is referred to twice", p)
		}
		c.used[p] = true
	}
	if overflow == 0 {
		return b, nil
	}
	if n := (overflow + 1) * size; uint64(len(c.buf)) < n {
		c.buf = make([]byte, n)
	}
	b = c.buf[:(overflow+1)*size]
	_, err := c.file.ReadAt(b, int64(id*size))
	return b, err
}

// An element is one of a page: a record or bucket of a leaf, or a branch's child.
type element struct {
	key, value []byte // of a leaf
	bucket     bool
	child      uint64 // of a branch
}

// elements takes a page apart. The slices share its memory.
func elements(page []byte) (es []element, leaf bool, err error) {
	flags, count := native.Uint16(page[8:]), int(native.Uint16(page[10:]))
	leaf = flags == leafPage
	if !leaf && flags != branchPage {
		return nil, false, fmt.Errorf("it has the type %#x", flags)
	}
	if pageHeaderLen+count*elementLen > len(page) {
		return nil, false, fmt.Errorf("it has %d elements", count)
	}
	es = make([]element, count)
	for i := range es {
		at := pageHeaderLen + i*elementLen
		b := page[at:]
		e := &es[i]
		var pos, klen, vlen uint64
		if leaf {
			e.bucket = native.Uint32(b) == bucketElement
			if !e.bucket && native.Uint32(b) != 0 {
				return nil, false, fmt.Errorf("its element %d has an unknown type", i)
			}
			pos, klen, vlen = uint64(native.Uint32(b[4:])), uint64(native.Uint32(b[8:])), uint64(native.Uint32(b[12:]))
		} else {
			pos, klen, e.child = uint64(native.Uint32(b)), uint64(native.Uint32(b[4:])), native.Uint64(b[8:])
		}
		if pos+klen+vlen > uint64(len(b)) || klen == 0 || pos < elementLen {
			return nil, false, fmt.Errorf("its element %d is out of it", i)
		}
		e.key, e.value = b[pos:pos+klen], b[pos+klen:pos+klen+vlen]
	}
	return es, leaf, nil
}

// tree checks the pages of a bucket from the page id down. Its keys must be at
// least low and below high, where there is one.
func (c *checker) tree(id uint64, low, high []byte, depth int) error {
	if depth > maxDepth {
		return errors.New("its pages are nested without end")
	}
	page, err := c.page(id)
	if err != nil {
		return err
	}
	es, leaf, err := elements(page)
	if err != nil {
		return fmt.Errorf("page %d is damaged: %w", id, err)
	}
	if len(es) == 0 && depth > 0 && !leaf {
		return fmt.Errorf("page %d is damaged: it has no children", id)
	}
	if err := ordered(es, low, high); err != nil {
		return fmt.Errorf("page %d is damaged: %w", id, err)
	}
	if leaf {
		return c.buckets(id, es, depth)
	}
	// The children are read into the same buffer.
	for i := range es {
		es[i].key = bytes.Clone(es[i].key)
	}
	for i, e := range es {
		end := high
		if i+1 < len(es) {
			end = es[i+1].key
		}
		if err := c.tree(e.child, e.key, end, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func ordered(es []element, low, high []byte) error {
	for i, e := range es {
		switch {
		case i > 0 && bytes.Compare(es[i-1].key, e.key) >= 0,
			low != nil && bytes.Compare(e.key, low) < 0,
			high != nil && bytes.Compare(e.key, high) >= 0:
			return fmt.Errorf("the key of its element %d is out of order", i)
		}
	}
	return nil
}

// buckets checks the buckets inside a leaf.
func (c *checker) buckets(id uint64, es []element, depth int) error {
	var roots []uint64
	for i, e := range es {
		if !e.bucket {
			continue
		}
		if len(e.value) < bucketHeaderLen {
			return fmt.Errorf("page %d is damaged: its element %d is no bucket", id, i)
		}
		if root := native.Uint64(e.value); root != 0 {
			roots = append(roots, root)
			continue
		}
		// A small bucket is a page inside the element.
		inside := e.value[bucketHeaderLen:]
		if len(inside) < pageHeaderLen {
			return fmt.Errorf("page %d is damaged: its element %d is no bucket", id, i)
		}
		es, leaf, err := elements(inside)
		if err == nil && !leaf {
			err = errors.New("it is not a leaf")
		}
		if err == nil {
			err = ordered(es, nil, nil)
		}
		for _, e := range es {
			if e.bucket && err == nil {
				err = errors.New("it has a bucket inside")
			}
		}
		if err != nil {
			return fmt.Errorf("page %d is damaged: the bucket in its element %d: %w", id, i, err)
		}
	}
	for _, root := range roots {
		if err := c.tree(root, nil, nil, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// freelist checks that no page on the free list is in use: bbolt would write
// over it.
func (c *checker) freelist() error {
	if c.meta.freelist == noFreelist {
		return nil
	}
	page, err := c.page(c.meta.freelist)
	if err != nil {
		return fmt.Errorf("the free list: %w", err)
	}
	count, ids := uint64(native.Uint16(page[10:])), page[pageHeaderLen:]
	if count == 0xFFFF && len(ids) >= 8 {
		count, ids = native.Uint64(ids), ids[8:]
	}
	if native.Uint16(page[8:]) != freelistPage || count > uint64(len(ids)/8) {
		return errors.New("the free list is damaged")
	}
	for i := range count {
		id := native.Uint64(ids[8*i:])
		if id < 2 || id >= c.meta.pages || c.used[id] {
			return fmt.Errorf("page %d is in use and on the free list", id)
		}
		c.used[id] = true
	}
	return nil
}
