package idemhttp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/bbolt"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/backend/bolt"
	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
	"github.com/idem-go/idem/idemhttp"
)

// A shop is a server whose effects are in the storage of its records: each charge
// and its answer are one transaction. It runs in a process of its own, to be
// killed. The variable has the kind of its storage, where that is, and a name of
// the test's own in it, separated by spaces.
const shopEnv = "IDEM_HTTP_SHOP"

// A shopStorage is where a shop has its records and its charges.
type shopStorage interface {
	backend() idem.Backend

	// charge charges once more for key and completes the claim in ctx with the
	// answer, in one transaction.
	charge(ctx context.Context, key string, answer idem.Result) error

	// charges returns how often was charged for each key.
	charges(ctx context.Context) (map[string]int, error)

	close()
}

func openShop(ctx context.Context, kind, where, name string) (shopStorage, error) {
	switch kind {
	case "bolt":
		return openBoltShop(where)
	case "postgres":
		return openPostgresShop(ctx, where, name)
	case "redis":
		return openRedisShop(where, name)
	}
	return nil, fmt.Errorf("there is no shop of the kind %q", kind)
}

// runShop serves on the listener that it has inherited, until it is killed.
func runShop() int {
	err := func() error {
		listener, err := net.FileListener(os.NewFile(3, "listener"))
		if err != nil {
			return err
		}
		args := strings.Split(os.Getenv(shopEnv), " ")
		shop, err := openShop(context.Background(), args[0], args[1], args[2])
		if err != nil {
			return err
		}
		store, err := idem.New(shop.backend(), &idem.Options{Lease: time.Second})
		if err != nil {
			return err
		}
		protect := idemhttp.Middleware(store, &idemhttp.Options{Required: true, Wait: 10 * time.Second, Log: slog.New(slog.DiscardHandler)})
		return http.Serve(listener, protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			claim, _ := idemhttp.ClaimFrom(r.Context())
			body := fmt.Appendf(nil, "charged %s in attempt %d", claim.Key, claim.Attempt)
			answer := idemhttp.NewResult(http.StatusCreated, http.Header{"Location": {"/charges/" + claim.Key}}, body)
			switch err := shop.charge(r.Context(), claim.Key, answer); {
			case errors.Is(err, idem.ErrLost):
				http.Error(w, err.Error(), http.StatusServiceUnavailable) // rolled back
			case err != nil:
				http.Error(w, err.Error(), http.StatusInternalServerError)
			default:
				idemhttp.WriteResult(w, answer)
			}
		})))
	}()
	fmt.Fprintln(os.Stderr, "shop:", err)
	return 1
}

type boltShop struct {
	db      *bbolt.DB
	records *bolt.Backend
}

var chargesBucket = []byte("charges")

func openBoltShop(path string) (*boltShop, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(chargesBucket)
		return err
	})
	if err != nil {
		return nil, err
	}
	records, err := bolt.New(db, nil)
	return &boltShop{db, records}, err
}

func (s *boltShop) backend() idem.Backend { return s.records }

func (s *boltShop) charge(ctx context.Context, key string, answer idem.Result) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(chargesBucket)
		n := append(b.Get([]byte(key)), make([]byte, 8)...)[:8]
		n = binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(n)+1)
		if err := b.Put([]byte(key), n); err != nil {
			return err
		}
		return idemhttp.Complete(ctx, s.records.WithTx(tx), answer)
	})
}

func (s *boltShop) charges(context.Context) (map[string]int, error) {
	all := map[string]int{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(chargesBucket).ForEach(func(k, v []byte) error {
			all[string(k)] = int(binary.BigEndian.Uint64(v))
			return nil
		})
	})
	return all, err
}

func (s *boltShop) close() { _ = s.db.Close() }

type postgresShop struct {
	pool    *pgxpool.Pool
	records *postgres.Backend
	table   string
}

func openPostgresShop(ctx context.Context, url, schema string) (*postgresShop, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	records, err := postgres.New(pool, &postgres.Options{Schema: schema})
	if err == nil {
		err = records.Migrate(ctx)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS `+schema+`.charges (key text NOT NULL)`)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &postgresShop{pool, records, schema + ".charges"}, nil
}

func (s *postgresShop) backend() idem.Backend { return s.records }

func (s *postgresShop) charge(ctx context.Context, key string, answer idem.Result) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO `+s.table+` (key) VALUES ($1)`, key); err != nil {
			return err
		}
		return idemhttp.Complete(ctx, s.records.WithTx(tx), answer)
	})
}

func (s *postgresShop) charges(ctx context.Context) (map[string]int, error) {
	rows, err := s.pool.Query(ctx, `SELECT key, count(*) FROM `+s.table+` GROUP BY key`)
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	var key string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { all[key] = n; return nil })
	return all, err
}

func (s *postgresShop) close() { s.pool.Close() }

type redisShop struct {
	client  *goredis.Client
	records *idemredis.Backend
	table   string
}

func openRedisShop(addr, name string) (*redisShop, error) {
	client := goredis.NewClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true})
	records, err := idemredis.New(client, &idemredis.Options{Prefix: name + ":", Warn: func(string) {}})
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return &redisShop{client, records, name + "-charges"}, nil
}

func (s *redisShop) backend() idem.Backend { return s.records }

func (s *redisShop) charge(ctx context.Context, key string, answer idem.Result) error {
	return s.client.Watch(ctx, func(tx *goredis.Tx) error {
		p := tx.TxPipeline()
		p.HIncrBy(ctx, s.table, key, 1)
		if err := idemhttp.Complete(ctx, s.records.WithTx(tx, p), answer); err != nil {
			return err
		}
		_, err := p.Exec(ctx)
		return err
	})
}

func (s *redisShop) charges(ctx context.Context) (map[string]int, error) {
	values, err := s.client.HGetAll(ctx, s.table).Result()
	all := map[string]int{}
	for key, n := range values {
		if all[key], err = strconv.Atoi(n); err != nil {
			return nil, err
		}
	}
	return all, err
}

func (s *redisShop) close() { _ = s.client.Close() }
