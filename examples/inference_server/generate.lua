-- usage: wrk -s generate.lua [OPTION...] URL/generate -- TOKENS THINK_MS
-- Each connection asks for TOKENS, waits for all of them, thinks for THINK_MS on average
-- (exponentially distributed, the same for each run), and asks again. At the end prints one line:
-- "measured:", requests per second, p50, p99 and longest latency in ms, failed requests.

local think

function init(arguments)
  think = tonumber(arguments[2])
  math.randomseed(1)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = string.format('{"tokens": %d}', tonumber(arguments[1]))
  local request = wrk.format()
  wrk.request = function() return request end
end

function delay()
  return math.floor(-think * math.log(1 - math.random()))
end

function done(summary, latency, _)
  local failed = 0
  for _, count in pairs(summary.errors) do failed = failed + count end
  print(string.format("measured: %.1f %.1f %.1f %.1f %d",
    summary.requests / (summary.duration / 1e6), latency:percentile(50) / 1000,
    latency:percentile(99) / 1000, latency.max / 1000, failed))
end
