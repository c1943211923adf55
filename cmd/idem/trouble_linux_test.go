package main

import (
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/internal/testpg"
	"github.com/idem-go/idem/internal/testredis"
)

// everyCommand is a call of each command that needs a store.
func everyCommand() map[string][]string {
	return map[string][]string{
		"run":     runArgs("--key k1", charge...),
		"show":    {"show", "k1"},
		"list":    {"list"},
		"resolve": {"resolve", "k1", "--attempt", "1", "--code", "0", "--yes"},
		"forget":  {"forget", "k1", "--attempt", "1", "--yes"},
		"sweep":   {"sweep"},
		"stats":   {"stats"},
		"erase":   {"erase", "--scope", "s", "--yes"},
		"export":  {"export", "--to", "another.db"},
		"migrate": {"migrate"},
	}
}

// wantEach gives every command a store that it cannot use.
func (b *box) wantEach(url string, code int, messages ...string) {
	b.t.Helper()
	other := *b
	other.env = append(slices.Clone(b.env), "IDEM_STORE="+url)
	calls := make(map[string]*running)
	for verb, args := range everyCommand() {
		calls[verb] = other.start(args...)
	}
	for verb, call := range calls {
		d := call.wait()
		b.t.Log(verb, d)
		d.expect(b.t, code, "", messages...)
		if strings.Contains(d.stderr, "secret") {
			b.t.Errorf("%s: the message has the password: %s", verb, d.stderr)
		}
		if verb == "run" && !strings.Contains(d.stderr, "; nothing was run\n") {
			b.t.Errorf("run: %s", d.stderr)
		}
	}
	b.wantEffects(0)
}

// closedPort returns an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestFL4_NoServer(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	addr := closedPort(t)
	for _, url := range []string{"postgres://user:secret@" + addr + "/db", "redis://user:secret@" + addr} {
		b.wantEach(url, exitUnavailable, "store "+strings.Replace(url, "secret", "xxxxx", 1)+": ", "connection refused", "see that the server runs")
	}
}

func TestServerLetsNobodyIn(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	server := testredis.Start(t, "--requirepass", "right")
	b.wantEach("redis://:secret@"+server.Addr, exitUnavailable, "the user or the password is wrong", "see that the server runs")
	b.wantEach("redis://"+server.Addr, exitUnavailable, "the server asks for a password")
	b.idem(runArgs("--key k2 --store redis://:right@"+server.Addr, "echo", "yes")...).expect(t, 0, "yes\n")

	url, schema := testpg.Schema(t)
	testpg.Exec(t, url, `CREATE ROLE `+schema+`_user LOGIN`)
	t.Cleanup(func() { testpg.Exec(t, url, `DROP ROLE `+schema+`_user`) })
	b.wantEach(testpg.With(strings.Replace(url, "postgres@", "nobody_"+schema+":secret@", 1), "idem_schema", schema),
		exitUnavailable, `role "nobody_`+schema+`" does not exist`, "see that the server runs")
	b.wantEach(testpg.With(strings.Replace(url, "/postgres?", "/nowhere?", 1), "password", "secret"),
		exitUnavailable, `database "nowhere" does not exist`, "see that the server runs")
	locked := testpg.New(t, "fsync=off")
	testpg.Exec(t, locked.URL(), `CREATE ROLE locked LOGIN PASSWORD 'right'`)
	access := filepath.Join(locked.Dir(), "data", "pg_hba.conf")
	rules, err := os.ReadFile(access)
	if err == nil {
		err = os.WriteFile(access, append([]byte("host all locked all scram-sha-256\n"), rules...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	testpg.Exec(t, locked.URL(), `SELECT pg_reload_conf()`)
	for _, login := range []string{"locked", "locked:secret"} {
		b.wantEach(strings.Replace(locked.URL(), "postgres@", login+"@", 1), exitUnavailable, "assword", "see that the server runs")
	}

	// The role may not use the table, nor create one.
	user := testpg.With(strings.Replace(url, "postgres@", schema+"_user@", 1), "idem_schema", schema)
	b.idem("migrate", "--store", user).expect(t, exitUnavailable, "", "the role may not create it; let its owner run what idem migrate --sql prints")
	b.idem("migrate", "--store", testpg.With(url, "idem_schema", schema)).expectPart(t, 0, "the table is created\n")
	b.idem(runArgs("--key k1 --store "+user, charge...)...).expect(t, exitUnavailable, "", "needs SELECT, INSERT, UPDATE and DELETE", "let the owner", "nothing was run")
	b.wantEffects(0)
}

func TestNotMigrated(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	url, schema := testpg.Schema(t)
	store := testpg.With(url, "idem_schema", schema, "idem_table", "ours")
	b.use(store)
	for verb, args := range everyCommand() {
		if verb != "migrate" {
			b.idem(args...).expect(t, exitDamaged, "", `there is no such table: "`+schema+`"."ours"`, "create it first: idem migrate\n")
		}
	}
	b.wantEffects(0)
	b.idem(runArgs("--key k1 --store "+store, "true")...).expect(t, exitDamaged, "", "idem migrate --store '"+store+"'")
	b.idem("migrate", "--dry-run").expectPart(t, 0, "would create the table")
	b.idem("migrate", "--dry-run").expectPart(t, 0, "would create the table")
	b.idem("migrate").expectPart(t, 0, "the table is created\n")
	b.idem("migrate").expectPart(t, 0, "there is nothing to do; the table is there and as it should be\n")
	b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
	// The SQL for people's own tools makes the same.
	testpg.Exec(t, url, `DROP TABLE `+schema+`.ours`)
	d := b.idem("migrate", "--sql")
	testpg.Exec(t, url, d.stdout)
	b.idem("migrate").expectPart(t, 0, "there is nothing to do")
}

func TestAnotherTable(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	url, schema := testpg.Schema(t)
	testpg.Exec(t, url, `CREATE TABLE `+schema+`.idem_records (key text PRIMARY KEY, amount int)`)
	b.wantEach(testpg.With(url, "idem_schema", schema), exitDamaged, `"amount integer NULL"`, "idem_table in the URL")
	testpg.Exec(t, url, `DROP TABLE `+schema+`.idem_records`)
}

func TestBB6_CorruptRecordInRedis(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	addr, prefix := testredis.Shared(t), rand.Text()+":"
	b.use("redis://" + addr + "?idem_prefix=" + prefix)
	b.idem(runArgs("--key k1 --on-lapse hold", "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
	client := testredis.Client(t, addr, nil)
	keys, err := client.Keys(t.Context(), prefix+"*k1*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if err := client.Set(t.Context(), keys[0], "garbage", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for verb, args := range everyCommand() {
		if verb != "migrate" && verb != "sweep" && verb != "list" && verb != "erase" {
			b.idem(args...).expect(t, exitDamaged, "", "stored data is corrupt", "nothing was changed")
		}
	}
}

// A database of Redis that was never used is no store, and one that was lost is no
// new one.
func TestRedisAbsentAndLost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	server := testredis.Start(t)
	client := server.Client(t, &goredis.Options{})
	store := "redis://" + server.Addr + "/0"
	b.use(store)
	for verb, args := range everyCommand() {
		if verb != "run" && verb != "migrate" {
			b.idem(args...).expect(t, exitAbsent, "", "store "+store+": nothing has been run with it yet, or it has lost all its records")
		}
	}
	b.idem("migrate").expectPart(t, 0, "there is nothing to do; the first run initialises it")
	if n, err := client.DBSize(t.Context()).Result(); n != 0 || err != nil {
		t.Errorf("looking has left %d keys, %v", n, err)
	}
	b.idem("migrate", "--init").expect(t, exitUsage, "", "--yes", "nothing was changed")
	b.idem("migrate", "--init", "--dry-run").expect(t, 0, "would initialise the store "+store+"; nothing was changed\n")
	b.idem("migrate", "--init", "--yes").expect(t, 0, "store "+store+": initialised\n")
	b.idem("migrate", "--init", "--yes").expectPart(t, 0, "there is nothing to do")
	b.idem("list").expect(t, 0, "")
	// Another process has noticed a flush, and left its mark.
	if err := client.Set(t.Context(), "idem:epoch", "lost:x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.wantEach(store, exitDamaged, "has lost its records", "Find out which operations were done", "idem migrate --init")
	b.idem("migrate", "--init", "--dry-run").expectPart(t, 0, "every operation that was in it could run again; nothing was changed\n")
	b.idem("migrate", "--init", "--yes").expect(t, 0, "store "+store+": initialised\n")
	b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
}

// A server that evicts records is refused for running, unless the URL accepts it;
// what it holds can be looked at.
func TestRedisThatEvicts(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	server := testredis.Start(t, "--maxmemory-policy", "allkeys-lru")
	store := "redis://" + server.Addr
	b.idem(runArgs("--key k1 --store "+store, charge...)...).expect(t, exitDamaged, "", "allkeys-lru", "accept that with idem_allow_eviction=true in the URL")
	b.wantEffects(0)
	b.idem(runArgs("--key k1 --store "+store+"?idem_allow_eviction=true", charge...)...).expect(t, 0, "charged\n")
	b.idem("show", "k1", "--store", store).expectPart(t, 0, "status\tcompleted\n")
	// Warnings are for people.
	b.idem(runArgs("-v --key k1 --store "+store+"?idem_allow_eviction=true", charge...)...).expect(t, 0, "charged\n", "does not save its data to disk", "allkeys-lru", "replay")
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cluster := testredis.StartCluster(t, 3)
	one := "redis://" + cluster.Nodes[0].Addr
	b.wantEach(one, exitDamaged, "is part of a cluster; name a second node in the URL, as in redis://HOST:PORT?addr=HOST:PORT")
	for _, prefix := range []string{"", "&idem_prefix={idem}:"} {
		b := newBox(t)
		b.use(one + "?addr=" + cluster.Nodes[1].Addr + prefix)
		b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
		b.idem(runArgs("--key k1", charge...)...).expect(t, 0, "charged\n")
		b.wantEffects(1)
		b.idem(runArgs("--key k2 --on-lapse hold", "sh", "-c", "exit 3")...).expect(t, 3, "", "held")
		b.idem("list").expectLines(t, 2)
		b.idem("resolve", "k2", "--attempt", "1", "--code", "0", "--yes").expectPart(t, 0, "recorded")
		b.idem("sweep").expect(t, 0, "nothing to do: Redis deletes expired records by itself\n")
		b.idem("migrate").expectPart(t, 0, "there is nothing to do")
	}
}

func TestUnixSockets(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	testredis.Start(t, "--unixsocket", b.path("redis.sock"))
	pg := testpg.New(t, "fsync=off")
	for _, store := range []string{"unix://" + b.path("redis.sock") + "?db=3&idem_prefix=a:", pg.SocketURL()} {
		key := rand.Text()
		b.idem("migrate", "--store", store)
		b.idem(runArgs("--key "+key+" --store "+store, "echo", "yes")...).expect(t, 0, "yes\n")
		b.idem("show", key, "--store", store).expectPart(t, 0, "status\tcompleted\n")
	}
}
