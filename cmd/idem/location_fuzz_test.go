package main

import (
	"strings"
	"testing"
)

// A URL that is accepted names one store, of one kind.
func FuzzLocate(f *testing.F) {
	for _, around := range [][2]string{
		{"postgres://app:", "@db:5432/jobs?sslmode=disable"},
		{"postgres://db/jobs?password=", "&user=app"},
		{"postgresql://app:", "@db,db2/jobs?idem_schema=idem&idem_table=r"},
		{"redis://:", "@cache:6379/3?idem_prefix=jobs:"},
		{"rediss://user:", "@cache?addr=other:6379"},
		{"unix://user:", "@/run/redis.sock?db=1"},
		{"redis://", "@cache"},
		{"mysql://app:", "@db/jobs"},
		{"postgres://app:%zz", "@db"},
		{"redis://:a/", "@cache"},
	} {
		f.Add(around[0], around[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		url := before + "password" + after
		l, err := locate(url)
		if err != nil {
			return
		}
		kinds := 0
		for _, is := range []bool{l.path != "", l.postgres != nil, l.redis != nil, l.cluster != nil} {
			if is {
				kinds++
			}
		}
		if kinds != 1 || l.name == "" {
			t.Errorf("%q is %d kinds of store, with the name %q", url, kinds, l.name)
		}
	})
}

// A password between the user and the host shows nowhere, whatever is in it.
func FuzzLocatePassword(f *testing.F) {
	f.Add("postgres", "app", "", "db:5432/jobs?sslmode=disable")
	f.Add("redis", "", "/x", "cache:6379/3")
	f.Add("rediss", "u", "?a=", "cache?addr=b:1")
	f.Add("mysql", "u", "@", "cache")
	f.Add("Postgres", "u%", "#", "[::1]:x")
	const secret = "s3cr3tMarker"
	f.Fuzz(func(t *testing.T, scheme, user, more, rest string) {
		if strings.ContainsAny(scheme, ":/") || strings.EqualFold(scheme, "bolt") {
			return // there is no password in a path
		}
		l, err := locate(scheme + "://" + user + ":" + secret + more + "@" + rest)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
		if l != nil && strings.Contains(l.name, secret) {
			t.Errorf("the name shows the password: %s", l.name)
		}
	})
}
