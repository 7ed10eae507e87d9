-- A call from a member, which reports the permits that it holds and leases more. See limiter/fleet/__init__.py.
-- KEYS: the hash of members, then the buckets, then the edit log. All are in the same slot.
-- ARGV: member, call number, its part of the advances (negative if it leaves), its slot, digest of its fleet limits.
--   Then for each bucket: rate, capacity, total spent, kept, wanted (permits), demand (permits/s), seconds since the
--   last response to this member (negative if there was none).
-- Returns {} for a late call. Otherwise {number of members, this member's part of the advances in billionths, its slot,
--   another member that has different limits}, then for each bucket {permits granted, its part of the demand in
--   millionths, 1 if other members wait}, and finally the version of the edit log.
-- Hashes: the field "" contains the totals, and each other field contains a member. Redis stores hashes compactly if
--   their values are at most 64 bytes long. Times are in microseconds.
local SILENT_US, STOPPED_US, WAITS_US, KEEP_S, MIN_PER_S, MAX_SLOTS = 3e6, 1e6, 1e6, 10, 0.25, 8
local max, min, floor, pack, unpack = math.max, math.min, math.floor, struct.pack, struct.unpack
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
local id, number, part = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local slot, digest = tonumber(ARGV[4]), tonumber(ARGV[5])

local members, alive, used = {}, { [id] = true }, {}
local at, removed_at, others, taken, other = now, 0, 0, 0, ''
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do members[all[i]] = all[i + 1] end
if members[id] and select(2, unpack('>dd', members[id])) >= number then return {} end
if members[''] then at, removed_at = unpack('>dI4', members['']) end
-- If Redis was stopped or its clock was set, members appear to have been silent. Ignore that.
local excused = now < at or now - at > STOPPED_US
for i = 1, #all, 2 do
  local member = all[i]
  if member ~= '' and member ~= id then
    local seen, latest, its, its_slot, its_digest = unpack('>ddddI4', all[i + 1])
    if not excused and now - seen > SILENT_US then
      redis.call('HDEL', KEYS[1], member)
      removed_at = floor(now / 1e3) % 2 ^ 32
    else
      if excused then redis.call('HSET', KEYS[1], member, pack('>ddddI4', now, latest, its, its_slot, its_digest)) end
      alive[member], used[its_slot], others, taken = true, true, others + 1, taken + its
      if its_digest ~= digest then other = member end
    end
  end
end
-- Each member gets an equal part, and one is left for the next to join. The old part counts until the member uses less.
local new_part = max(0, min(1 / (others + 2), 1 - taken))
if slot < 0 or used[slot] then
  slot = 0
  while used[slot] do slot = slot + 1 end
end
redis.call('HSET', KEYS[1], '', pack('>dI4', now, removed_at), id,
  pack('>ddddI4', now, number, max(part, new_part), slot, digest))
if part < 0 then redis.call('HDEL', KEYS[1], id) end
redis.call('EXPIRE', KEYS[1], 7200)

local answer = { others + 1, floor(new_part * 1e9), slot, other }
for k = 2, #KEYS - 1 do
  local a, key = k * 7 - 9, KEYS[k]
  local rate, capacity, spent = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  local kept, want = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local demand, age = tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
  local slots = min(floor(0.75 * (capacity - 1)), MAX_SLOTS)
  local parts = capacity / 2 - slots >= 2 and capacity / 2 - slots or 0
  local room = capacity - parts - slots
  local fields = redis.call('HMGET', key, '', id)
  local at, stored, v, weights, claims, held, longest, asking, clean_at = now, room, 0, 0, 0, 0, now, 0, removed_at
  if fields[1] then
    at, stored, v, weights, claims, held, longest, asking, clean_at = unpack('>dddddddI2I4', fields[1])
  elseif age >= 0 then
    stored = min(room, rate * age)
  end
  if clean_at ~= removed_at then
    weights, claims, held, longest, asking = 0, 0, 0, now, 0
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      if all[i] ~= '' then
        local _, its_held, weight, its_v, claim, advance = unpack('>dddddd', all[i + 1])
        if alive[all[i]] then
          weights, claims = weights + weight, claims + max(0, claim) + weight * (v - its_v)
          held, asking = held + max(-advance, its_held), asking + 1
        else
          -- This member is gone. It may have spent its advance, and will not repay it.
          stored = stored - advance
          redis.call('HDEL', key, all[i])
        end
      end
    end
  end
  local minted = rate * max(0, now - at) / 1e6
  stored = min(stored + minted, max(stored, 0, room - held))
  if weights > 0 then v, claims = v + minted / weights, claims + minted end
  local claim, since = 0, now
  if fields[2] then
    local its_spent, its_held, weight, its_v, its_claim, its_advance, its_since = unpack('>ddddddd', fields[2])
    local accrued = weight * (v - its_v)
    claim, claims, since = its_claim + accrued, claims - max(0, its_claim) - accrued, its_since
    -- Take back permits that the member has neither spent nor kept, or never received.
    stored = stored + its_held - (spent - its_spent) - kept
    weights, held, asking = weights - weight, held - max(-its_advance, its_held), asking - 1
  end
  if asking <= 0 then weights, claims, held, longest, asking = 0, 0, 0, now, 0 end
  local advance = floor(parts * max(part, new_part)) + (slot < slots and 1 or 0)
  stored = min(stored, max(0, room - held - max(-advance, kept)))

  local free = max(0, stored - max(0, claims) - max(0, claim))
  -- If the bucket cannot meet all claims, the member that has waited longest is next. It may get a whole permit early.
  local is_turn = stored >= min(room, claims + max(0, claim)) or since <= longest
  local most = claim + free + (since <= longest and claim > 0 and 1 - 1e-9 or 0)
  local granted = is_turn and max(0, floor(min(want, most, stored))) or 0
  stored, kept = stored - granted, kept + granted
  if granted > 0 or want == 0 then
    longest, since, claim = since <= longest and now or longest, now, max(-1, min(claim, want) - granted)
  end
  longest = min(longest, since)
  local share = 0
  if part < 0 or (demand == 0 and kept == 0) then
    stored = part < 0 and stored + kept or stored
    redis.call('HDEL', key, id)
  else
    local least = weights * min(1 / (asking + 1), MIN_PER_S / max(rate, MIN_PER_S))
    local weight = demand > 0 and max(demand, least) or 0
    weights, claims, held, asking = weights + weight, claims + max(0, claim), held + max(-advance, kept), asking + 1
    share = floor(weight / max(weights, 1e-9) * 1e6)
    redis.call('HSET', key, id, pack('>ddddddd', spent, kept, weight, v, claim, advance, since))
  end
  redis.call('HSET', key, '', pack('>dddddddI2I4', now, stored, v, weights, claims, held, longest, asking, removed_at))
  redis.call('EXPIRE', key, floor(rate > 0 and capacity / rate or 0) + KEEP_S)
  answer[#answer + 1], answer[#answer + 2] = granted, share
  answer[#answer + 1] = since > longest and now - longest > WAITS_US and 1 or 0
end
answer[#answer + 1] = redis.call('HMGET', KEYS[#KEYS], '')[1] or ''
return answer
