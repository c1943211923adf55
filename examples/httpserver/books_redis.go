package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	idemredis "github.com/idem-go/idem/backend/redis"
)

// redisBooks has the orders in the database in which idem's records are: a list
// for each customer, and what the customer has spent. It is for one server, not
// for a cluster.
type redisBooks struct {
	client *redis.Client
	b      *idemredis.Backend
}

func openRedis(url string) (books, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(opts)
	b, err := idemredis.New(client, nil)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &redisBooks{client, b}, nil
}

func (s *redisBooks) backend() storage { return s.b }
func (s *redisBooks) close() error     { return s.client.Close() }

func ordersKey(customer string) string { return "shop:orders:" + customer }
func spentKey(customer string) string  { return "shop:spent:" + customer }

func (s *redisBooks) book(ctx context.Context, o order, complete completion) error {
	executed := false
	attempt := func(tx *redis.Tx) error {
		// The list is watched: if another order comes in between, EXEC does
		// nothing, and this is run again with the next number.
		executed = false
		n, err := tx.LLen(ctx, ordersKey(o.Customer)).Result()
		if err != nil {
			return err
		}
		o.Number = n + 1
		doc, err := json.Marshal(o)
		if err != nil {
			return err
		}
		p := tx.TxPipeline()
		p.RPush(ctx, ordersKey(o.Customer), doc)
		p.IncrBy(ctx, spentKey(o.Customer), o.Cents)
		if err := complete(s.b.WithTx(tx, p), o); err != nil {
			return err
		}
		executed = true
		_, err = p.Exec(ctx)
		return err
	}
	for range 100 {
		err := s.client.Watch(ctx, attempt, ordersKey(o.Customer))
		switch {
		case errors.Is(err, redis.TxFailedErr):
			continue
		case err != nil && !executed:
			return notBooked(err)
		}
		return err
	}
	return notBooked(errors.New("other orders of the customer were faster, 100 times"))
}

func (s *redisBooks) summary(ctx context.Context, customer string) (sum summary, err error) {
	var count *redis.IntCmd
	var last *redis.StringSliceCmd
	var cents *redis.StringCmd
	_, err = s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		count = p.LLen(ctx, ordersKey(customer))
		cents = p.Get(ctx, spentKey(customer))
		last = p.LRange(ctx, ordersKey(customer), -lastOrders, -1)
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return sum, err
	}
	sum.Orders = count.Val()
	sum.Cents, _ = cents.Int64() // none: nothing was spent
	docs := last.Val()
	for i := len(docs) - 1; i >= 0; i-- {
		var o order
		if err := json.Unmarshal([]byte(docs[i]), &o); err != nil {
			return sum, fmt.Errorf("order of %s: %w", customer, err)
		}
		sum.Last = append(sum.Last, o)
	}
	return sum, nil
}
