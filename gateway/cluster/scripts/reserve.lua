-- What one request takes of all limits that it comes under: all checks, then all of it, or nothing.
-- A minute is the last sixty whole seconds and the one that has begun, by the clock of Redis;
-- a day and a month are those of UTC, by the same clock. `gateway/tenancy/window.py` is the theory.
--
-- KEYS: the holders' hashes. Beside the seconds (`window.lua`) one has D, d, M, m: the day and what
--       was spent in it, the month and what was spent in it.
-- ARGV: how long a hash is kept in s, then for each holder:
--       requests, most of them; tokens, most of them; tokens of the budget, most of them ('' for a
--       most: no such limit), 'd' or 'm'; what is known to be spent, should nothing be known here:
--       day, tokens, month, tokens
-- Returns {1 or 0: whether it was taken, second, microseconds, day, month, {requests used, ms until
--         it fits, ms until none is used, the same three of tokens, spent} of each holder}
local kept_s = ARGV[1]
local width = 11
local time = redis.call('TIME')
local second, micros = tonumber(time[1]), tonumber(time[2])

-- The civil date of a day since 1970 (Howard Hinnant, "chrono-compatible low-level date algorithms").
local function date(days)
    local z = days + 719468
    local era = math.floor(z / 146097)
    local doe = z - era * 146097
    local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
        - math.floor(doe / 146096)) / 365)
    local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
    local mp = math.floor((5 * doy + 2) / 153)
    local month = mp < 10 and mp + 3 or mp - 9
    local year = yoe + era * 400 + (month <= 2 and 1 or 0)
    return string.format('%04d-%02d', year, month), doy - math.floor((153 * mp + 2) / 5) + 1
end
local month, number = date(math.floor(second / 86400))
local day = string.format('%s-%02d', month, number)

local function until_over(slot)
    return (slot + 61 - second) * 1000 - math.floor(micros / 1000)
end
-- ms until `amount` more fits; 0: now.
local function fits_in(key, kind, found, amount, most)
    local excess = found.used + amount - most
    if excess <= 0 then
        return 0
    end
    for each = found.oldest or 0, found.newest or -1 do
        excess = excess - tonumber(redis.call('HGET', key, kind .. whole(each)) or 0)
        if excess <= 0 then
            return until_over(each)
        end
    end
    return 61000
end
local function use(key, kind, found, amount)
    local at = math.max(second, found.newest or 0)
    redis.call('HINCRBY', key, kind .. whole(at), whole(amount))
    redis.call('HSET', key, kind .. 'u', whole(found.used + amount), kind .. 'n', whole(at),
        kind .. 'o', whole(found.oldest or at))
    found.used, found.newest = found.used + amount, at
end
local function spent(key, first)
    local found = redis.call('HMGET', key, 'D', 'd', 'M', 'm')
    local of_day, of_month = tonumber(found[2] or 0), tonumber(found[4] or 0)
    if not found[1] then
        of_day, of_month = 0, 0
        if ARGV[first + 7] == day then
            of_day = tonumber(ARGV[first + 8])
        end
        if ARGV[first + 9] == month then
            of_month = tonumber(ARGV[first + 10])
        end
    end
    if found[1] and found[1] ~= day then
        of_day = 0
    end
    if found[1] and found[3] ~= month then
        of_month = 0
    end
    return {d = of_day, m = of_month}
end

local holders, fits = {}, true
for index, key in ipairs(KEYS) do
    local first = 2 + (index - 1) * width
    local it = {first = first, waits = {r = 0, t = 0}, found = {}}
    for place, kind in ipairs({'r', 't'}) do
        local amount, most = ARGV[first + 2 * place - 2], ARGV[first + 2 * place - 1]
        if most ~= '' then
            local found = window(key, kind, second)
            it.found[kind] = found
            it.waits[kind] = fits_in(key, kind, found, tonumber(amount), tonumber(most))
            fits = fits and it.waits[kind] == 0
        end
    end
    if ARGV[first + 5] ~= '' then
        it.spent = spent(key, first)
        local sum = it.spent[ARGV[first + 6]] + tonumber(ARGV[first + 4])
        fits = fits and sum <= tonumber(ARGV[first + 5])
    end
    holders[index] = it
end

local rows = {}
for index, key in ipairs(KEYS) do
    local it = holders[index]
    local row = {}
    for place, kind in ipairs({'r', 't'}) do
        local found = it.found[kind]
        if found and fits then
            use(key, kind, found, tonumber(ARGV[it.first + 2 * place - 2]))
        end
        row[#row + 1] = found and found.used or 0
        row[#row + 1] = it.waits[kind]
        row[#row + 1] = found and found.newest and until_over(found.newest) or 0
    end
    if it.spent and fits then
        local amount = tonumber(ARGV[it.first + 4])
        it.spent = {d = it.spent.d + amount, m = it.spent.m + amount}
        redis.call('HSET', key, 'D', day, 'd', whole(it.spent.d), 'M', month, 'm',
            whole(it.spent.m))
    end
    row[#row + 1] = it.spent and it.spent[ARGV[it.first + 6]] or 0
    redis.call('EXPIRE', key, kept_s)
    rows[index] = row
end
return {fits and 1 or 0, second, micros, day, month, rows}
