package redis

import (
	"crypto/sha1"
	"encoding/hex"
)

// A script is sent by its hash, which Redis knows until it restarts.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// Redis does not roll back a script that stops half-way. So a script looks at
// everything first and then writes once. What it does after that must not fail.

// swapScript is a Swap.
//
//	KEYS  the record; the canary, if there is one
//	ARGV  the epoch that the canary should have
//	      the old token
//	      the new record, without what is put in front
//	      milliseconds after which Redis may reclaim its memory
//	      the new token, if a repeated Swap has to be written again
//
// It returns 1 if it has stored the record, 0 if there is none, the server's time
// and the record in the way, or what the canary has instead of the epoch.
//
// The time comes first: Redis before version 7 does not let a script write after
// it has asked for the time unless effects are replicated, which they are by
// default.
var swapScript = newScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if KEYS[2] then
  local epoch = redis.call('GET', KEYS[2])
  if epoch ~= ARGV[1] then return epoch or '' end
end
local v = redis.call('GET', KEYS[1])
local token = ''
if v then
  if #v < 21 or v:byte(1) ~= 1 then return {now, v} end
  local stamp, _, ttl, n = struct.unpack('>I8I2I8I2', v, 2)
  if ttl > 0 and now - stamp < ttl then token = v:sub(22, 21 + n) end
end
if token ~= ARGV[2] then
  if token == '' then return 0 end
  if token == ARGV[5] then redis.call('SET', KEYS[1], v, 'KEEPTTL') end
  return {now, v}
end
redis.call('SET', KEYS[1], struct.pack('>BI8I2', 1, now, now % 65521) .. ARGV[3], 'PX', ARGV[4])
if token ~= '' then
  local n = struct.unpack('>I2', ARGV[3], 9)
  redis.pcall('PUBLISH', KEYS[1], ARGV[3]:sub(11, 10 + n))
end
return 1
`)

// getScript is a Get where the time cannot be asked for beside the record: in a
// cluster a command without a key goes to any node. Its arguments and answers are
// those of swapScript.
var getScript = newScript(`
if KEYS[2] then
  local epoch = redis.call('GET', KEYS[2])
  if epoch ~= ARGV[1] then return epoch or '' end
end
local v = redis.call('GET', KEYS[1])
if not v then return 0 end
local t = redis.call('TIME')
return {t[1] * 1000000 + t[2], v}
`)

// tellScript tells those who wait for a record that a transaction has replaced
// it. Whoever may not publish still may write.
const tellScript = `redis.pcall('PUBLISH', KEYS[1], ARGV[1]) return 1`
