package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// A client calls the provider.
type client struct {
	url  string
	http http.Client
	hang step // what is asked of the provider for demonstration; "" for nothing
}

func newClient(addr string, timeout time.Duration, hang step) *client {
	// No connection is kept: it may die unnoticed, and a request over it be sent twice.
	transport := &http.Transport{DisableKeepAlives: true}
	return &client{url: "http://" + addr, http: http.Client{Timeout: timeout, Transport: transport}, hang: hang}
}

// charge has the provider book a charge. After an error nobody knows whether it has.
func (c *client) charge(ctx context.Context, reference string, cents int64) (booked charge, err error) {
	body, err := json.Marshal(charge{Reference: reference, Cents: cents})
	if err != nil {
		return charge{}, err
	}
	_, err = c.call(ctx, http.MethodPost, "/charges", body, &booked)
	return booked, err
}

// find asks the provider for the charge with a reference.
func (c *client) find(ctx context.Context, reference string) (charge, error) {
	var found []charge
	code, err := c.call(ctx, http.MethodGet, "/charges/"+reference, nil, &found)
	switch {
	case code == http.StatusNotFound:
		return charge{}, errNotFound
	case code == http.StatusAccepted:
		return charge{}, errPending
	case err != nil:
		return charge{}, err
	case len(found) != 1:
		return charge{}, fmt.Errorf("the provider has %d charges with the reference %s", len(found), reference)
	}
	return found[0], nil
}

// all returns all charges of the provider.
func (c *client) all(ctx context.Context) (found []charge, err error) {
	_, err = c.call(ctx, http.MethodGet, "/charges", nil, &found)
	return found, err
}

// call makes a request and decodes its answer. The code is 0 if there is none.
func (c *client) call(ctx context.Context, method, path string, body []byte, answer any) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if method == http.MethodPost && c.hang != "" {
		req.Header.Set(hangHeader, string(c.hang))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		return resp.StatusCode, fmt.Errorf("the provider answered %s", resp.Status)
	}
	return resp.StatusCode, json.NewDecoder(resp.Body).Decode(answer)
}
