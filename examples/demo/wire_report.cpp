#include "wire_report.hpp"

#include <exception>

#include <boost/json.hpp>

namespace demo {
namespace {

namespace json = boost::json;
using sluice::duration;

/// One description of every field, for both directions: `visit(name, field)`.
template <class Visitor>
void fields(verdict& of, Visitor&& visit) {
  visit("completed", of.completed);
  visit("lost", of.lost);
  visit("repeated", of.repeated);
  visit("out_of_order", of.out_of_order);
  visit("too_short", of.too_short);
}

template <class Visitor>
void fields(percentiles& of, Visitor&& visit) {
  visit("p50", of.p50);
  visit("p90", of.p90);
  visit("p99", of.p99);
  visit("max", of.max);
}

template <class Visitor>
void fields(scheduler_report& of, Visitor&& visit) {
  visit("settings", of.settings);
  visit("reactor", of.reactor);
  visit("suspends", of.suspends);
  visit("resumes", of.resumes);
  visit("driver_calls", of.driver_calls);
  visit("failed_outcomes", of.failed_outcomes);
  visit("invalid_outcomes", of.invalid_outcomes);
  visit("forced_resumes", of.forced_resumes);
  visit("backend_restarts", of.backend_restarts);
  visit("policy_ejections", of.policy_ejections);
  visit("suspend_calls", of.suspend_calls);
  visit("resume_calls", of.resume_calls);
  visit("suspend_p50", of.suspend_p50);
  visit("suspend_p99", of.suspend_p99);
  visit("resume_p50", of.resume_p50);
  visit("resume_p99", of.resume_p99);
  visit("decision_p50", of.decision_p50);
  visit("decision_p99", of.decision_p99);
  visit("off_p50", of.off_p50);
  visit("off_p99", of.off_p99);
}

template <class Visitor>
void fields(online_report& of, Visitor&& visit) {
  visit("finished", of.finished);
  visit("unfinished", of.unfinished);
  visit("arrivals", of.arrivals);
  visit("wake_up", of.wake_up);
  visit("turnaround", of.turnaround);
  visit("kernels", of.kernels);
  visit("scheduler", of.scheduler);
}

json::value write(const std::string& from) { return json::string(from); }
json::value write(std::uint64_t from) { return from; }
json::value write(duration from) { return from.count(); }
json::value write(const std::vector<duration>& from) {
  json::array made;
  for (const duration each : from) made.push_back(each.count());
  return made;
}
template <class Record>
json::value write(const std::optional<Record>& from);
template <class Record>
json::value write(const Record& from) {
  json::object made;
  Record copy = from;
  fields(copy, [&](const char* name, const auto& field) { made[name] = write(field); });
  return made;
}
template <class Record>
json::value write(const std::optional<Record>& from) {
  return from ? write(*from) : json::value();
}

void read(const json::value& from, std::string& into) { into = from.as_string(); }
void read(const json::value& from, std::uint64_t& into) { into = from.to_number<std::uint64_t>(); }
void read(const json::value& from, duration& into) {
  into = duration{from.to_number<std::int64_t>()};
}
void read(const json::value& from, std::vector<duration>& into) {
  for (const json::value& each : from.as_array()) {
    into.push_back(duration{each.to_number<std::int64_t>()});
  }
}
template <class Record>
void read(const json::value& from, std::optional<Record>& into);
template <class Record>
void read(const json::value& from, Record& into) {
  const json::object& object = from.as_object();
  fields(into, [&](const char* name, auto& field) { read(object.at(name), field); });
}
template <class Record>
void read(const json::value& from, std::optional<Record>& into) {
  if (!from.is_null()) read(from, into.emplace());
}

template <class Record>
checked<Record> parse_record(std::string_view line) {
  try {
    Record made;
    read(json::parse({line.data(), line.size()}), made);
    return made;
  } catch (const std::exception& wrong) {
    return failure(std::string("the report of a demo program cannot be read: ") + wrong.what());
  }
}

}  // namespace

std::string to_line(const online_report& report) { return json::serialize(write(report)); }
std::string to_line(const verdict& report) { return json::serialize(write(report)); }

checked<online_report> parse_online_report(std::string_view line) {
  return parse_record<online_report>(line);
}
checked<verdict> parse_verdict(std::string_view line) { return parse_record<verdict>(line); }

}  // namespace demo
