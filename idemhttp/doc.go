// Package idemhttp makes retries of HTTP requests safe: a [Middleware] for
// servers and a [Transport] for clients, on top of package idem.
//
// The client names the operation in the header Idempotency-Key. The first request
// with the key runs the handler, its answer is stored, and every later request
// with the key gets that answer, with Idempotent-Replayed: true. It follows
// draft-ietf-httpapi-idempotency-key-header-07, with answers of its own as
// problem details (RFC 9457).
//
//	protect := idemhttp.Middleware(store, &idemhttp.Options{
//		Scope:    func(r *http.Request) string { return tenantOf(r) },
//		Required: true,
//	})
//	mux.Handle("POST /charges", protect(charge))
//
// # What a client is told
//
//	                                             status  reason           Retry-After
//	first request                                the handler's
//	retry of a completed one                     the handler's, replayed
//	no key, where Options.Required               400     missing-key
//	key malformed, too long, or more than one    400     malformed-key
//	body ended early                             400     unreadable-body
//	body larger than Options.MaxBody             413     body-too-large
//	key used with another request                422     key-reused
//	first request is still running               409     in-progress      1 s to the lease
//	outcome unknown, under idem.Hold             409     unresolved
//	storage failed; nothing ran                  503     unavailable      1 s
//	done, but could not be recorded              503     not-recorded     1 s
//	taken over by another request                503     taken-over       1 s
//	stored record is damaged; nothing ran        500     damaged
//	credentials, but no Scope; nothing ran       500     no-scope
//
// The body of a problem has the members type (the policy's URL with the reason as
// fragment), title, status, detail and reason, and a Link header leads to the
// policy. [PolicyHandler] serves one.
//
// With the storage down nothing runs. There is no option to run unprotected.
//
// # What becomes of an operation
//
// The status of the handler's answer decides, unless Options.Ending does:
//
//	2xx, 3xx, 4xx           Record    a definite answer: every retry gets it
//	307, 308                Release   the client repeats the request elsewhere
//	401                     Release   the client comes back with credentials
//	408, 425, 429, 503      Release   nothing was done: a retry runs
//	other 5xx, a panic      Abandon   unknown: a retry runs as a takeover, or is
//	                                  refused under idem.Hold
//
// An answer leaves only after it has been recorded, so that no client has an
// answer that a retry would not get. If it cannot be recorded while the lease
// lasts, the client gets 503 not-recorded instead: the operation was done, and
// under idem.Takeover a retry runs it again, with Claim.Takeover set. Where that
// does harm, record the answer in the transaction of the change, with [Complete],
// or choose idem.Hold. A claim that was lost ends as 503 taken-over, and the retry
// gets the answer of who has it.
//
// A client that hangs up loses nothing: the answer is recorded all the same. The
// handler's context is the request's, which is cancelled then; a handler that
// gives up because of that and answers with 5xx leaves the outcome unknown. Work
// that should go on without the client runs under [context.WithoutCancel].
//
// # What a replay has
//
// A replay has the status, the body byte for byte, and these headers, line by
// line, together with Options.Headers: Accept-Patch, Accept-Post, Allow,
// Cache-Control, Content-Digest, Content-Disposition, Content-Encoding,
// Content-Language, Content-Location, Content-Security-Policy, Content-Type,
// Deprecation, ETag, Expires, Last-Modified, Link, Location, Preference-Applied,
// Referrer-Policy, Repr-Digest, Retry-After, Sunset, Vary,
// X-Content-Type-Options and X-Frame-Options. It never has Set-Cookie, headers
// with credentials, Date, or those of the connection; they are not stored. Content-Length is that of the body. Trailers are sent with the
// first answer and not kept.
//
// Bodies are stored as they are: a body with a secret in it, such as a new access
// token, is stored in clear. Options.Ending can have it omitted.
//
// The handler is not told what encodings the client accepts, so a replay is
// readable for whoever retries. Compression goes around the Middleware, not
// inside, and so do CORS, sessions and everything else that answers for this one
// connection and not for the operation.
//
// # Streams and large answers
//
// What cannot be held back passes through: an answer that the handler flushes,
// one that is larger than MaxResult of the store, and a connection that it takes
// over. The memory for an answer is bounded by MaxResult. Such an operation is
// done when the handler returns; its record has no body. A replay of it has the
// status (200 after a connection was taken over) and the headers that do not
// describe a body, an empty body, and Idempotent-Body-Omitted: true. If the
// process dies in the middle, the outcome is unknown.
//
// # The handler
//
// The handler reads the request's body as usual; it has been read before, up to
// Options.MaxBody. [ClaimFrom] has the claim: Takeover tells that an earlier
// attempt may have had its effect, and ChildKey is a key for calls to other
// systems. The lease of the claim is extended while the handler runs.
package idemhttp
