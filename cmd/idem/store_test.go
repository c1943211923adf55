//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
)

// A store that cannot be used is left as it is, and nothing is run.
func TestStoreThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, content string
		code          int
	}{
		{"BB-6 foreign", "This is a letter to my aunt, and she wants to read it.\n", exitDamaged},
		{"BB-6 five bytes", "12345", exitDamaged},
		{"BB-6 empty", "", exitDamaged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.write("s.db", tc.content)
			for _, args := range [][]string{
				runArgs("--key k1 --store s.db", charge...),
				{"show", "k1", "--store", "s.db"},
				{"list", "--store", "s.db"},
			} {
				b.idem(args...).expect(t, tc.code, "", "store s.db: ", "left as it is")
			}
			b.wantEffects(0)
			if b.read("s.db") != tc.content {
				t.Error("the file was changed")
			}
		})
	}
}

func TestBB6_CutStore(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	whole := b.read("s.db")
	b.write("s.db", whole[:9000])
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, exitDamaged, "", "store s.db: ", "nothing was run")
	b.wantEffects(1)
	b.write("s.db", whole)
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	b.wantEffects(1)
}

func TestBB1_LockedStore(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	f, err := os.OpenFile(b.path("s.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	b.idem(runArgs("--key k2 --store s.db", charge...)...).expect(t, exitUnavailable, "",
		"store s.db: ", "locked by another process", "nothing was run", "fuser s.db")
	b.wantEffects(1)
	f.Close()
	b.idem(runArgs("--key k2 --store s.db", charge...)...).expect(t, 0, "charged\n")
}

// A long command does not keep the store from others.
func TestSharedStore(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	ready, gate := b.gate("ready"), b.gate("gate")
	p := b.start(runArgs("--key k1", "sh", "-c", "echo ready > ready; read go < gate; echo done")...)
	ready.wait()
	b.idem(runArgs("--key k2", charge...)...).expect(t, 0, "charged\n")
	b.idem("show", "k1").expectPart(t, 0, "status\tin-progress\n")
	b.idem("list").expectPart(t, 0, "k1\t-\tin-progress\t1\t")
	gate.open()
	p.wait().expect(t, 0, "done\n")
}

func TestPlacesWhereNoStoreCanBe(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	b.write("state", "not a folder")
	b.idem(runArgs("--key k1", charge...)...).expect(t, exitUnavailable, "", "not a directory", "nothing was run")
	b.idem(runArgs("--key k1 --store missing/s.db", charge...)...).expect(t, exitUnavailable, "", "store missing/s.db: ", "no such file or directory", "mkdir -p missing")
	b.idem(runArgs("--key k1 --store "+b.dir, charge...)...).expect(t, exitUnavailable, "", "nothing was run")
	b.wantEffects(0)
}

func TestNoPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testenv.Skip(t, "root", "only root can run idem as somebody else")
	}
	b := newBox(t)
	b.idem(runArgs("--key k1 --store s.db", charge...)...).expect(t, 0, "charged\n")
	if err := os.Chmod(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	asNobody := func(args ...string) done {
		cmd := b.cmd(args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return finish(t, cmd, nil)
	}
	asNobody(runArgs("--key k2", charge...)...).expect(t, exitUnavailable, "", "permission denied", "nothing was run", "--store")
	asNobody(runArgs("--key k2 --store s.db", charge...)...).expect(t, exitUnavailable, "", "store s.db: no permission", "nothing was run")
	asNobody("list", "--store", "s.db").expect(t, exitUnavailable, "", "store s.db: no permission")
	// Who may read may look.
	if err := os.Chmod(b.path("s.db"), 0o644); err != nil {
		t.Fatal(err)
	}
	asNobody(runArgs("--key k2 --store s.db", charge...)...).expect(t, exitUnavailable, "", "permission denied", "nothing was run")
	asNobody("show", "k1", "--store", "s.db").expectPart(t, 0, "status\tcompleted\n")
	b.wantEffects(1)
}
