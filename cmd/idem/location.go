package main

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/backend/postgres"
	idemredis "github.com/idem-go/idem/backend/redis"
)

// A location says where a store is: what its URL tells, taken apart. One of the
// three is set: path, postgres, or redis or cluster.
type location struct {
	name string // for messages and command lines; there is no password in it

	path string // of the bolt file
	made bool   // the path is the default one, whose folder idem makes

	postgres        *pgxpool.Config
	postgresOptions postgres.Options

	redis        *goredis.Options
	cluster      *goredis.ClusterOptions
	redisOptions idemredis.Options
}

// kind returns what keeps the records.
func (l *location) kind() string {
	switch {
	case l.postgres != nil:
		return "postgres"
	case l.redis != nil, l.cluster != nil:
		return "redis"
	}
	return "bolt"
}

// locate takes a store's URL apart. What it says of a bad one has nothing in it
// that could be a password.
func locate(store string) (*location, error) {
	scheme, rest, found := strings.Cut(store, ":")
	slashes := strings.HasPrefix(rest, "//")
	if found {
		switch strings.ToLower(scheme) {
		case "bolt":
			path, err := boltPath(store, rest)
			return &location{name: path, path: path}, err
		case "postgres", "postgresql":
			return remote(store, (*location).locatePostgres)
		case "redis", "rediss", "unix":
			return remote(store, (*location).locateRedis)
		}
		if slashes {
			return nil, fmt.Errorf("store %s://...: the URL of a store begins with bolt:, postgres:// or redis://", scheme)
		}
	}
	if mayHavePassword(store) {
		return nil, errors.New("store ...: this may be a connection string with a password in it; write a URL, as in postgres://USER:PASSWORD@HOST/DATABASE, or ./NAME for a file of that name")
	}
	return &location{name: store, path: store}, nil
}

// mayHavePassword reports whether what is no URL looks like another way to name a
// database, such as host=db password=x or user:x@host. Messages show the names of
// files.
func mayHavePassword(store string) bool {
	first, _, _ := strings.Cut(store, "/")
	if first == "" || first == "." || first == ".." {
		return false
	}
	login, _, host := strings.Cut(first, "@")
	return host && strings.Contains(login, ":") || strings.Contains(strings.ToLower(store), "password=")
}

// boltPath returns the file that the URL of a bolt store names, of which rest is
// what follows the scheme.
func boltPath(store, rest string) (string, error) {
	path, slashes := strings.CutPrefix(rest, "//")
	if slashes && !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("store %q: after bolt:// the path has to be absolute, as in bolt:///%s; a relative one is bolt:%s", store, path, path)
	}
	if path == "" {
		return "", fmt.Errorf("store %q: there is no path in it", store)
	}
	return path, nil
}

// defaultLocation follows the XDG Base Directory Specification, which has state
// that outlives restarts but is not worth a backup by the user in this place,
// and wants relative values ignored.
func defaultLocation(getenv func(string) string) (*location, error) {
	dir := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) {
		home := getenv("HOME")
		if home == "" {
			return nil, errors.New("store: neither --store nor $IDEM_STORE, $XDG_STATE_HOME or $HOME says where to keep the records; give one, as in --store /var/lib/idem/jobs.db")
		}
		dir = filepath.Join(home, ".local", "state")
	}
	path := filepath.Join(dir, "idem", "idem.db")
	return &location{name: path, path: path, made: true}, nil
}

// remote takes the URL of a server apart, by way of the function for its kind.
func remote(store string, locate func(*location, *url.URL, map[string]string) error) (*location, error) {
	scheme, rest, _ := strings.Cut(store, "://")
	if rest == "" {
		scheme, _, _ = strings.Cut(store, ":")
		return nil, fmt.Errorf("store %s://...: nothing comes after the slashes", scheme)
	}
	u, err := url.Parse(store)
	// A password with a slash or a question mark in it ends the host for the
	// parser, and would be taken for a port, a path or a parameter.
	if err != nil || strings.Contains(u.EscapedPath()+u.RawQuery+u.EscapedFragment(), "@") || u.Fragment != "" {
		return nil, fmt.Errorf("store %s://...: this is no valid URL; in a password everything but letters, digits and -._~ has to be written as %%XX, such as %%40 for @", scheme)
	}
	l := &location{name: redacted(u)}
	own, err := ownParameters(u)
	if err == nil {
		err = locate(l, u, own)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", l.name, err)
	}
	return l, nil
}

// ownParameters takes the parameters out of a URL that are for idem and not for
// the driver. It leaves the others as they are written.
func ownParameters(u *url.URL) (map[string]string, error) {
	own := make(map[string]string)
	var others []string
	for parameter := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		if !strings.HasPrefix(name, "idem_") {
			others = append(others, parameter)
			continue
		}
		value, err := url.QueryUnescape(value)
		if _, twice := own[name]; err != nil || twice {
			return nil, fmt.Errorf("the parameter %s is there twice, or its value is not valid", name)
		}
		own[name] = value
	}
	u.RawQuery = strings.Join(others, "&")
	return own, nil
}

// only refuses parameters that mean nothing.
func only(own map[string]string, names ...string) error {
	for name := range own {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no parameter %s; there are %s", name, strings.Join(names, " and "))
		}
	}
	return nil
}

// redacted returns a URL without its passwords.
func redacted(u *url.URL) string {
	shown := *u
	if shown.User != nil {
		_, password := shown.User.Password()
		switch {
		case password:
			shown.User = url.UserPassword(shown.User.Username(), "xxxxx")
		case !strings.HasPrefix(shown.Scheme, "postgres"):
			shown.User = url.User("xxxxx") // with Redis it is as likely to be the password
		}
	}
	parameters := strings.Split(shown.RawQuery, "&")
	for i, parameter := range parameters {
		name, _, _ := strings.Cut(parameter, "=")
		if lower := strings.ToLower(name); strings.Contains(lower, "passw") || strings.Contains(lower, "%") {
			parameters[i] = name + "=xxxxx"
		}
	}
	shown.RawQuery = strings.Join(parameters, "&")
	return shown.String()
}

// connectTimeout is how long a server may take to accept a connection, unless the
// URL says otherwise.
const connectTimeout = 10 * time.Second

func (l *location) locatePostgres(u *url.URL, own map[string]string) error {
	if err := only(own, "idem_schema", "idem_table"); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		// In front of this stands the URL.
		_, reason, found := strings.Cut(err.Error(), "`: ")
		if !found {
			reason = "the driver does not take it"
		}
		return errors.New(reason)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "idem"
	}
	l.postgres = config
	l.postgresOptions = postgres.Options{Schema: own["idem_schema"], Table: own["idem_table"]}
	_, err = postgres.Schema(l.postgresOptions.Schema, l.postgresOptions.Table)
	return clean(err)
}

func (l *location) locateRedis(u *url.URL, own map[string]string) error {
	if err := only(own, "idem_prefix", "idem_allow_eviction"); err != nil {
		return err
	}
	l.redisOptions = idemredis.Options{Prefix: own["idem_prefix"], SkipCheck: true}
	if allow, given := own["idem_allow_eviction"]; given {
		var err error
		if l.redisOptions.AllowEviction, err = strconv.ParseBool(allow); err != nil {
			return errors.New("idem_allow_eviction is true or false")
		}
	}
	var err error
	if u.Query().Has("addr") { // several nodes
		l.cluster, err = goredis.ParseClusterURL(u.String())
	} else {
		l.redis, err = goredis.ParseURL(u.String())
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "redis: "))
	}
	// The prefix is checked by the backend, which asks the server nothing.
	client := l.redisClient()
	defer func() { _ = client.Close() }()
	_, err = idemredis.New(client, &l.redisOptions)
	return clean(err)
}

// redisClient returns a client, which does not connect before it is used.
func (l *location) redisClient() goredis.UniversalClient {
	if l.cluster != nil {
		return goredis.NewClusterClient(l.cluster)
	}
	return goredis.NewClient(l.redis)
}

// clean returns what a backend says without the name of the backend.
func clean(err error) error {
	if err == nil {
		return nil
	}
	s := err.Error()
	for _, front := range []string{"postgres: new: ", "redis: "} {
		s = strings.TrimPrefix(s, front)
	}
	return errors.New(s)
}
