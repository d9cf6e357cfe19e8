-- One heartbeat of one gateway: who is there, what is given back, kept, renewed, taken, looked at.
-- Time is that of Redis. An epoch is greater than each before it, and at least the time in
-- milliseconds, so that it grows although Redis may have forgotten everything.
--
-- KEYS: gateways (sorted set), abouts (hash), then for each pool: lease, epoch, checkpoint
-- ARGV: gateway, about, '1' where it goes, lease in ms, how long epochs are kept in ms, and
--       checkpoints, then for each pool: '1' to give its lease back, checkpoint or '',
--       '2' to renew or take it, '1' to look at it, '0' neither, greatest epoch that was seen
-- Returns {gateways and abouts in turn, {holder, epoch, checkpoint} of each pool}: '' for none;
--         a checkpoint only where the pool was taken just now.
local gateways, abouts = KEYS[1], KEYS[2]
local me, about, goes = ARGV[1], ARGV[2], ARGV[3]
local lease_ms, kept_ms, checkpoint_ms = ARGV[4], ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(value)
    return string.format('%.0f', value)
end

-- First of the writes, since Redis refuses it where memory ran out, and then the whole script.
redis.call('ZADD', gateways, whole(now + lease_ms), me)
redis.call('HSET', abouts, me, about)
if goes == '1' then
    redis.call('ZREM', gateways, me)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', gateways, '-inf', whole(now))) do
    redis.call('HDEL', abouts, gone)
end
redis.call('ZREMRANGEBYSCORE', gateways, '-inf', whole(now))
if goes == '1' then
    redis.call('HDEL', abouts, me)
end
redis.call('PEXPIRE', gateways, kept_ms)
redis.call('PEXPIRE', abouts, kept_ms)

local pools = {}
local at = 7
for first = 3, #KEYS, 3 do
    local lease, epochs, checkpoint = KEYS[first], KEYS[first + 1], KEYS[first + 2]
    local leaves, text, wish, seen = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
    at = at + 4
    local holder, epoch, found = '', '', ''
    local value = redis.call('GET', lease)
    if value then
        local cut = string.find(value, ' ', 1, true)
        epoch, holder = string.sub(value, 1, cut - 1), string.sub(value, cut + 1)
    end
    if holder == me and leaves == '1' then
        redis.call('DEL', lease)
        holder, epoch = '', ''
    end
    if text ~= '' and holder == me then
        redis.call('SET', checkpoint, text, 'PX', checkpoint_ms)
    end
    if wish == '2' then
        if holder == me then
            redis.call('PEXPIRE', lease, lease_ms)
        elseif holder == '' then
            local last = math.max(tonumber(redis.call('GET', epochs) or '0'), seen)
            holder, epoch = me, whole(math.max(last + 1, now))
            redis.call('SET', epochs, epoch, 'PX', kept_ms)
            redis.call('SET', lease, epoch .. ' ' .. me, 'PX', lease_ms)
            found = redis.call('GET', checkpoint) or ''
        end
    end
    pools[#pools + 1] = {holder, epoch, found}
end

local there = {}
for _, name in ipairs(redis.call('ZRANGE', gateways, 0, -1)) do
    there[#there + 1] = name
    there[#there + 1] = redis.call('HGET', abouts, name) or ''
end
return {there, pools}
