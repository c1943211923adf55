module github.com/idem-go/idem

go 1.26.0

require go.etcd.io/bbolt v1.5.0

require (
	github.com/alecthomas/kong v1.17.0
	golang.org/x/sys v0.50.0
	golang.org/x/term v0.48.0
)
