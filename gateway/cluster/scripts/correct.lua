-- What was used of limits, entered after the fact: of one request that has ended, or of many that
-- a gateway let through while it could not ask. Nothing is refused here. See `reserve.lua`.
--
-- KEYS: the holders' hashes
-- ARGV: how long a hash is kept in s, then for each holder:
--       seconds ago (or '' and the second itself), requests, tokens, tokens of the budget, day,
--       month ('' for both: no budget); each number may be negative: given back. What is given
--       back counts from when it was used, and what was too little from now.
--       Then what the gateway knows to be spent, for where nothing is known here: day, tokens,
--       month, tokens; '1' where Redis may have forgotten some: the more of both counts then.
local kept_s = ARGV[1]
local width = 12
local now = tonumber(redis.call('TIME')[1])

-- What of it was entered: nothing is given back that is not there.
local function enter(key, kind, at, amount)
    local found = window(key, kind, math.max(now, at))
    if at < math.max(now, found.newest or 0) - 60 then
        return 0
    end
    local field = kind .. whole(at)
    if amount < 0 then
        local there = tonumber(redis.call('HGET', key, field) or 0)
        amount = math.max(amount, -there)
    end
    if amount == 0 then
        return 0
    end
    redis.call('HINCRBY', key, field, whole(amount))
    redis.call('HSET', key, kind .. 'u', whole(found.used + amount),
        kind .. 'o', whole(math.min(found.oldest or at, at)),
        kind .. 'n', whole(math.max(found.newest or at, at)))
    return amount
end

-- An age is counted in whole seconds of another clock: twice told, it may be of two seconds here.
local function enter_by_age(key, kind, at, amount)
    local left = amount - enter(key, kind, at, amount)
    for _, beside in ipairs({at - 1, math.min(now, at + 1)}) do
        if left < 0 then
            left = left - enter(key, kind, beside, left)
        end
    end
end

local function spend(key, first)
    local amount, day, month = tonumber(ARGV[first + 4]), ARGV[first + 5], ARGV[first + 6]
    local found = redis.call('HMGET', key, 'D', 'd', 'M', 'm')
    local of_day, of_month = tonumber(found[2] or 0), tonumber(found[4] or 0)
    -- Names of days and months are in the order of time; a day that is over is not opened again.
    local current_day, current_month = found[1] or '', found[3] or ''
    if day > current_day then
        current_day, of_day = day, 0
    end
    if month > current_month then
        current_month, of_month = month, 0
    end
    if day == current_day then
        of_day = math.max(0, of_day + amount)
    end
    if month == current_month then
        of_month = math.max(0, of_month + amount)
    end
    if not found[1] or ARGV[first + 11] == '1' then
        if ARGV[first + 7] == current_day then
            of_day = math.max(of_day, tonumber(ARGV[first + 8]))
        end
        if ARGV[first + 9] == current_month then
            of_month = math.max(of_month, tonumber(ARGV[first + 10]))
        end
    end
    redis.call('HSET', key, 'D', current_day, 'd', whole(of_day), 'M', current_month, 'm',
        whole(of_month))
end

for index, key in ipairs(KEYS) do
    local first = 2 + (index - 1) * width
    local ago_s, second = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    for place, kind in ipairs({'r', 't'}) do
        local amount = tonumber(ARGV[first + 1 + place])
        if ago_s then
            enter_by_age(key, kind, now - ago_s, amount)
        else
            enter(key, kind, amount > 0 and now or second, amount)
        end
    end
    if ARGV[first + 5] ~= '' then
        spend(key, first)
    end
    redis.call('EXPIRE', key, kept_s)
end
return 1
