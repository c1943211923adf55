package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystems are those on which a store is not as safe as on a disk of the machine,
// by the numbers that statfs gives them.
var fileSystems = map[int64]string{
	unix.TMPFS_MAGIC:      "tmpfs, in memory: a restart of the machine loses all records",
	unix.RAMFS_MAGIC:      "ramfs, in memory: a restart of the machine loses all records",
	unix.NFS_SUPER_MAGIC:  "NFS, whose locks and syncing depend on the server and on how it is mounted",
	unix.SMB_SUPER_MAGIC:  "SMB, whose locks and syncing depend on the server and on how it is mounted",
	unix.SMB2_SUPER_MAGIC: "SMB, whose locks and syncing depend on the server and on how it is mounted",
	unix.CIFS_SUPER_MAGIC: "SMB, whose locks and syncing depend on the server and on how it is mounted",
	unix.V9FS_MAGIC:       "9P, whose locks and syncing depend on the host",
}

// fileSystem judges where the file is, and how much room there is.
func (d *diagnosis) fileSystem(path string, info os.FileInfo) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		d.add(skip, "space", "", "the file system cannot be asked: %v", err)
		return
	}
	free := wide(st.Bavail) * wide(st.Bsize)
	switch {
	case st.Flags&unix.ST_RDONLY != 0:
		d.add(bad, "space", "mount it for writing", "the file system is mounted for reading only")
	case free < 4<<20:
		d.add(bad, "space", "make room: without it no operation can begin", "%s are free on the file system", size(free))
	case free < max(64<<20, info.Size()/4):
		d.add(warn, "space", "make room, while it works", "%s are free on the file system, and the file has %s", size(free), size(info.Size()))
	default:
		d.add(ok, "space", "", "%s are free on the file system", size(free))
	}
	if what, known := fileSystems[wide(st.Type)]; known {
		d.add(warn, "durability", "keep it on a disk of this machine", "the file is on %s", what)
	} else {
		d.add(ok, "durability", "", "the file is on a disk, and a write is acknowledged when it is synced")
	}
}

// wide returns a number that has another type on other machines.
func wide[N int32 | uint32 | int64 | uint64](n N) int64 { return int64(n) }

// holder tells which process has the lock of the file at this moment.
func (d *diagnosis) holder(path string) {
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	st, known := info.Sys().(*syscall.Stat_t)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || !known {
		d.add(skip, "lock", "", "who holds the file is not to be seen: %v", err)
		return
	}
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] == "->" || fields[1] != "FLOCK" {
			continue
		}
		parts := strings.Split(fields[5], ":")
		if len(parts) != 3 || parts[2] != strconv.FormatUint(st.Ino, 10) || !sameDevice(parts[0], parts[1], uint64(wide(st.Dev))) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join("/proc", fields[4], "comm"))
		d.add(ok, "lock", "", "process %s%s holds the file at this moment", fields[4], inBrackets(strings.TrimSpace(string(name))))
		return
	}
	d.add(ok, "lock", "", "no process holds the file at this moment")
}

func sameDevice(major, minor string, dev uint64) bool {
	return fmt.Sprintf("%s:%s", major, minor) == fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
