-- Changes a fleet's edit log if the member knows its latest version. See admin/edits/fleet_log.py.
-- KEYS: the log. ARGV: the known version, the number of fields to remove, their names, then the fields to set and their
--   values, including the new version (field ""). Returns 1, or 0 if another member has changed the log.
if (redis.call('HMGET', KEYS[1], '')[1] or '') ~= ARGV[1] then return 0 end
local first = 3 + ARGV[2]
for i = 3, first - 1 do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
