package idem

// ClaimOf returns the claim of the attempt that wrote r under the stored key.
func ClaimOf(stored string, r Record) *Claim {
	_, key := SplitKey(stored)
	return &Claim{
		Key: key, Attempt: r.Attempt, Fence: r.Fence, Fingerprint: r.Fingerprint,
		stored: stored, id: r.attemptID(), frees: true, last: r,
	}
}

// ID returns the attempt id.
func (c *Claim) ID() string { return c.id }
