-- One commit: all checks, then all writes, so that it is made as a whole or not at all.
-- Texts pass through unread: cjson would make an empty list a mapping.
--
-- KEYS: state (hash), records (hash), audit (stream), answers (hash), answer order (list)
-- ARGV: schema, at, who, action, request id, answer's key or '', answer,
--       records, audit, audit bytes, answers, answers bytes (what is kept at most), entry bytes,
--       then for each write: kind, id, expected version or '', '1' to put or '0' to delete, body
local state, records, audit, answers, order = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local entry_bytes = tonumber(ARGV[13])
local first, width = 14, 5

local function number(field)
    return tonumber(redis.call('HGET', state, field) or '0')
end
local function whole(value)
    return string.format('%.0f', value)
end

local schema = number('schema')
if schema > tonumber(ARGV[1]) then
    return {'newer', whole(schema)}
end
-- Each key is looked at before anything is written: one of another type fails here.
if redis.call('HEXISTS', answers, ARGV[6]) == 1 then
    return {'answered'}
end
redis.call('LLEN', order)
local entries = redis.call('XLEN', audit)
local count = redis.call('HLEN', records)
local grown = 0
local befores = {}
for at = first, #ARGV, width do
    local found, before = '0', false
    local value = redis.call('HGET', records, ARGV[at] .. ':' .. ARGV[at + 1])
    if value then
        local cut = string.find(value, ' ', 1, true)
        found, before = string.sub(value, 1, cut - 1), string.sub(value, cut + 1)
    end
    if ARGV[at + 2] ~= '' and ARGV[at + 2] ~= found then
        return {'conflict', ARGV[at], ARGV[at + 1], found}
    end
    befores[at] = before
    grown = grown + tonumber(ARGV[at + 3]) - (before and 1 or 0)
end
if grown > 0 and count + grown > tonumber(ARGV[8]) then
    return {'full', whole(count)}
end

-- First of the writes, since Redis refuses it where memory ran out, and then the whole script.
redis.call('HSET', state, 'schema', ARGV[1])
local revision = whole(number('revision') + 1)
local sequence = number('sequence')
local audit_bytes = number('audit_bytes')
local answers_bytes = number('answers_bytes')
local floor = redis.call('HGET', state, 'audit_floor') or '0'
for at = first, #ARGV, width do
    local kind, id, text, before = ARGV[at], ARGV[at + 1], ARGV[at + 4], befores[at]
    local puts = ARGV[at + 3] == '1'
    if puts then
        redis.call('HSET', records, kind .. ':' .. id, revision .. ' ' .. text)
    elseif before then
        redis.call('HDEL', records, kind .. ':' .. id)
    end
    if puts or before then
        sequence = sequence + 1
        local size = entry_bytes + #id + #(before or '') + #text
        audit_bytes = audit_bytes + size
        entries = entries + 1
        redis.call('XADD', audit, whole(sequence) .. '-0',
            'size', whole(size), 'revision', revision, 'at', ARGV[2], 'who', ARGV[3],
            'action', ARGV[4], 'request_id', ARGV[5], 'kind', kind, 'id', id,
            'before', before or '', 'after', text)
    end
end
while entries > tonumber(ARGV[9]) or audit_bytes > tonumber(ARGV[10]) do
    local oldest = redis.call('XRANGE', audit, '-', '+', 'COUNT', 1)[1]
    audit_bytes = audit_bytes - tonumber(oldest[2][2])
    floor = oldest[2][4]
    redis.call('XDEL', audit, oldest[1])
    entries = entries - 1
end
if ARGV[6] ~= '' then
    redis.call('HSET', answers, ARGV[6], ARGV[7])
    redis.call('RPUSH', order, ARGV[6])
    answers_bytes = answers_bytes + entry_bytes + #ARGV[7]
end
while redis.call('LLEN', order) > tonumber(ARGV[11]) or answers_bytes > tonumber(ARGV[12]) do
    local oldest = redis.call('LPOP', order)
    answers_bytes = answers_bytes - entry_bytes - redis.call('HSTRLEN', answers, oldest)
    redis.call('HDEL', answers, oldest)
end
redis.call('HSET', state, 'revision', revision, 'sequence', whole(sequence),
    'audit_bytes', whole(audit_bytes), 'audit_floor', floor,
    'answers_bytes', whole(answers_bytes))
return {'done', revision}
