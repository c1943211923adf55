package idemtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

// crashes are programs that are right as long as nothing dies.
var crashes = []mistake{
	{
		name:     "an effect elsewhere is repeated",
		caughtBy: "LeaseRunsOut RecordLost",
		says:     []string{"The outcome of the first attempt is unknown", "claim.ChildKey", "The effect happened 2 times", "idemtest.MayRepeat"},
		passes:   "Twice AtOnce WhileRunning CallerGone StoreFails StoreDown EffectFails",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), plain(e))
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "keys in memory and effects on disk",
		caughtBy: "Killed/BeforeTheReply",
		says:     []string{"The keys are kept in the memory of the process", "The effect happened 2 times"},
		passes:   "Twice WhileRunning Killed/BeforeTheEffect",
		program: func(t testing.TB, e *Env) send {
			store := open(t, e, nil)
			disk := filepath.Join(e.Dir(), "effects")
			return func(ctx context.Context, r Request) (string, error) {
				out, err := store.Do(ctx, r.Key, idem.FingerprintOf(r.Payload), func(ctx context.Context, _ *idem.Claim) (idem.Result, error) {
					return idem.Result{}, e.Effect(ctx, func() error { return appendLine(disk, r.Key) })
				})
				return string(out.Result.Body), err
			}
		},
	},
	{
		name:     "PE-16 seen on disk before the work",
		caughtBy: "Killed/BeforeTheEffect",
		says:     []string{"The message is marked as seen before the work", "has had no effect"},
		passes:   "Twice Killed/BeforeTheReply",
		program: func(_ testing.TB, e *Env) send {
			dir := e.Dir()
			return func(ctx context.Context, r Request) (string, error) {
				f, err := os.OpenFile(filepath.Join(dir, r.Key), os.O_CREATE|os.O_EXCL, 0o600)
				if errors.Is(err, os.ErrExist) {
					return "", nil // seen
				}
				if err != nil {
					return "", err
				}
				f.Close()
				return "", e.Effect(ctx, nil)
			}
		},
	},
	{
		name:     "seen on disk after the work",
		caughtBy: "Killed/AfterTheEffect",
		says:     []string{"The outcome of the first attempt is unknown", "The effect happened 2 times"},
		passes:   "Twice Killed/BeforeTheEffect Killed/BeforeTheReply",
		program: func(_ testing.TB, e *Env) send {
			seen := filepath.Join(e.Dir(), "seen")
			return func(ctx context.Context, r Request) (string, error) {
				if known, _ := os.ReadFile(seen); strings.Contains(string(known), r.Key) {
					return "", nil
				}
				if err := e.Effect(ctx, nil); err != nil {
					return "", err
				}
				return "", appendLine(seen, r.Key)
			}
		},
	},
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
