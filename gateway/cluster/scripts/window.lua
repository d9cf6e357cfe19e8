-- How the seconds of one kind of use lie in a holder's hash, for all scripts that count: it is put
-- in front of them. Of each kind (r: requests, t: tokens) a hash has <kind><second>, what was used
-- in it; <kind>u, the sum; <kind>o and <kind>n, the oldest and the newest second.
local function whole(value)
    return string.format('%.0f', value)
end

-- {used, oldest, newest} of the minute before `now`; what is older is taken out. Never more than the
-- seconds that are there are looked at, however long the holder used nothing.
local function window(key, kind, now)
    local found = redis.call('HMGET', key, kind .. 'u', kind .. 'o', kind .. 'n')
    local used, oldest, newest = tonumber(found[1] or 0), tonumber(found[2]), tonumber(found[3])
    if not oldest then
        return {used = 0}
    end
    local first = math.max(now, newest) - 60
    if newest < first then
        for each = oldest, newest do
            redis.call('HDEL', key, kind .. whole(each))
        end
        redis.call('HDEL', key, kind .. 'u', kind .. 'o', kind .. 'n')
        return {used = 0}
    end
    if oldest < first then
        for each = oldest, first - 1 do
            local field = kind .. whole(each)
            used = used - tonumber(redis.call('HGET', key, field) or 0)
            redis.call('HDEL', key, field)
        end
        oldest = first
        redis.call('HSET', key, kind .. 'u', whole(used), kind .. 'o', whole(oldest))
    end
    return {used = used, oldest = oldest, newest = newest}
end
