package redis

import (
	"crypto/sha1"
	"encoding/hex"
)

// swapScript does Swaps, each of them by itself: what becomes of one is nothing to
// the others. Redis does not roll back a script that stops half-way, so a Swap
// looks at everything first and then writes once, and what comes after that cannot
// fail.
//
//	KEYS  the canary, if there is one; the record of each Swap
//	ARGV  the epoch that the canary should have, or '' if there is none
//	      'again' if a repeated Swap has to be written again, or ''
//	      of each Swap: the old token
//	                    the new record, without what is put in front
//	                    milliseconds until Redis may reclaim its memory; '' for a Get
//
// It returns the server's time, and of each Swap
//
//	1         it has stored the record
//	0         there is none
//	{record}  the one in the way
//	text      why Redis has refused
//
// or, instead of all that, what the canary has if it is not the epoch.
var swapScript = newScript(`
local call, pcall, sub, byte, unpack = redis.call, redis.pcall, string.sub, string.byte, struct.unpack
local epoch, again, first = ARGV[1], ARGV[2] ~= '', 0
if epoch ~= '' then
  local found = call('GET', KEYS[1])
  if found ~= epoch then return found or '' end
  first = 1
end
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
local head = struct.pack('>BI8I2', 1, now, now % 65521)
local answers = {now}
for i = 1, #KEYS - first do
  local key, old, new, reclaim = KEYS[first + i], ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local answer, token = 0, ''
  local fresh = old == '' and reclaim ~= '' and pcall('SET', key, head .. new, 'NX', 'PX', reclaim)
  if fresh and fresh.ok then -- most claims are of keys that have no record at all
    answer = 1
  else
    local v = pcall('GET', key)
    if type(v) == 'table' then
      answer, token = v.err, false
    elseif v then
      if #v < 21 or byte(v, 1) ~= 1 then
        answer, token = {v}, false
      else
        local stamp, _, ttl, n = unpack('>I8I2I8I2', v, 2)
        if ttl > 0 and now - stamp < ttl then
          answer, token = {v}, sub(v, 22, 21 + n)
        end
      end
    end
    if reclaim == '' then
      -- it is a Get
    elseif token == old then
      local did = pcall('SET', key, head .. new, 'PX', reclaim)
      if did.err then
        answer = did.err
      else
        answer = 1
        if old ~= '' then
          pcall('PUBLISH', key, sub(new, 11, 10 + unpack('>I2', new, 9)))
        end
      end
    elseif again and token == sub(new, 11, 10 + unpack('>I2', new, 9)) then
      local did = pcall('SET', key, v, 'KEEPTTL')
      if did.err then answer = did.err end
    end
  end
  answers[i + 1] = answer
end
return answers
`)

// tellScript tells those who wait for a record that a transaction has replaced
// it. Whoever may not publish still may write.
const tellScript = `redis.pcall('PUBLISH', KEYS[1], ARGV[1]) return 1`

// A script is sent by its hash, which Redis knows until it restarts.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}
