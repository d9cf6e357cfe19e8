-- Writes fields of one hash if others are as they were read. ARGV: how many conditions; a field and
-- its value for each, an empty value meaning that there must be no such field; then a field and its
-- value for each write, an empty one to remove it. Returns whether it was done.
local at = 2
for _ = 1, tonumber(ARGV[1]) do
  if (redis.call('HGET', KEYS[1], ARGV[at]) or '') ~= ARGV[at + 1] then
    return 0
  end
  at = at + 2
end
while at < #ARGV do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[at])
  else
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  end
  at = at + 2
end
return 1
