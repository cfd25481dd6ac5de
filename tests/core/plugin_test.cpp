// Plugins: what is refused and with which words, and that nothing is lost on the way through C.

#include "core_bench.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/plugin_loader.hpp"
#include "sluice/policies/all.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/policy_plugin.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/testing/policy_check.hpp"
#include "sluice/testing/policy_harness.hpp"
#include "sluice/testing/recording_sink.hpp"

namespace sluice::tests::plugin_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string plugin_path(const std::string& name) {
  return std::string(SLUICE_TEST_PLUGINS) + "/" + name + ".so";
}

/// One of the policies of this project, as a plugin.
std::string built_in(const std::string& name) {
  return std::string(SLUICE_POLICY_PLUGINS) + "/" + name + ".so";
}

std::string refusal(const std::string& path) {
  std::string message;
  EXPECT_FALSE(load_policy_plugin(path, message)) << path;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_THAT(message, StartsWith(path + ": "));
  return message.substr(std::min(message.size(), path.size() + 2));
}

/// A policy from a plugin's file with these parameters.
std::unique_ptr<policy> make_from(const std::string& name, parameters values = {}) {
  std::string message;
  policy_registry registry;
  const auto kind = registry.load(plugin_path(name), message);
  EXPECT_TRUE(kind) << message;
  if (!kind) return nullptr;
  auto made = make_policy(**kind, std::move(values), message);
  EXPECT_TRUE(made) << message;
  return made ? std::move(*made) : nullptr;
}

class folder {
 public:
  folder() { std::filesystem::create_directories(path_); }
  ~folder() { std::filesystem::remove_all(path_); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name) << content;
    return path_ + "/" + name;
  }

 private:
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("sluice_plugin_test_" + std::to_string(getpid())))
          .string();
};

// What is refused -------------------------------------------------------------------------------

TEST(PluginLoader, SaysWhatIsWrongWithAFile) {
  const folder here;
  EXPECT_EQ(refusal(here.path() + "/nonesuch.so"), "cannot be read: No such file or directory");
  EXPECT_EQ(refusal(here.path()), "is not a shared library");
  EXPECT_EQ(refusal(here.write("text.so", "not a library")), "is not a shared library");
  EXPECT_EQ(refusal(here.write("empty.so", "")), "is not a shared library");
  EXPECT_EQ(refusal(here.write("magic.so", "\177ELF\2\1\1")), "is not a shared library");
}

// Symptom: a file that was still being copied killed the process by SIGBUS.
TEST(PluginLoader, RefusesALibraryThatIsCutShort) {
  const folder here;
  std::ifstream file(plugin_path("broken_no_symbol"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(whole.size(), sizeof(Elf64_Ehdr));
  // How much of the file its headers place in memory; debug information behind that may be missing.
  Elf64_Ehdr header{};
  std::memcpy(&header, whole.data(), sizeof header);
  ASSERT_GE(whole.size(), header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr));
  std::size_t loaded = 0;
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    std::memcpy(&segment, whole.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    if (segment.p_type == PT_LOAD) {
      loaded = std::max<std::size_t>(loaded, segment.p_offset + segment.p_filesz);
    }
  }
  for (const std::size_t size : {sizeof header, loaded / 2, loaded - 1}) {
    EXPECT_THAT(refusal(here.write("cut.so", whole.substr(0, size))),
                StartsWith("is truncated: it has " + std::to_string(size) + " bytes"));
  }
}

TEST(PluginLoader, SaysWhatIsWrongWithALibrary) {
  EXPECT_EQ(refusal(plugin_path("broken_no_symbol")),
            "is not a policy plugin: it does not export sluice_get_policy_plugin()");
  EXPECT_EQ(refusal(plugin_path("broken_undefined_symbol")),
            "cannot be loaded: undefined symbol: nobody_has_this_function");
}

TEST(PluginLoader, SaysWhatIsWrongWithADescriptor) {
  EXPECT_EQ(refusal(plugin_path("broken_wrong_abi")),
            "is built for plugin ABI 1, but this sluice requires 2; rebuild it with this version's "
            "header sluice/plugin.h");
  EXPECT_THAT(refusal(plugin_path("broken_small")), StartsWith("has a descriptor of 24 bytes"));
  EXPECT_EQ(refusal(plugin_path("broken_null_descriptor")),
            "sluice_get_policy_plugin() returned no descriptor");
  EXPECT_EQ(refusal(plugin_path("broken_no_name")), "has a descriptor without a name");
  EXPECT_EQ(refusal(plugin_path("broken_bad_name")),
            "has the name \"My Policy\"; a name must consist of lower-case letters, digits and _");
  EXPECT_EQ(refusal(plugin_path("broken_no_decide")), "has a descriptor without decide()");
  EXPECT_EQ(refusal(plugin_path("broken_no_parameters")),
            "has a descriptor with a parameter count but no parameters");
}

TEST(PluginLoader, SaysWhatIsWrongWithASchema) {
  EXPECT_EQ(
      refusal(plugin_path("broken_bad_default")),
      "has a parameter share that has a default that is out of range: share is 1.5; it must be 0 "
      "to 1");
  EXPECT_EQ(refusal(plugin_path("broken_twice")), "has a parameter share that is defined twice");
  EXPECT_EQ(refusal(plugin_path("broken_reserved_key")),
            "has a parameter plugin that has a name that [policy] reserves");
  EXPECT_EQ(refusal(plugin_path("broken_no_key")), "has a parameter without a key (number 1)");
  EXPECT_EQ(refusal(plugin_path("broken_no_type")),
            "has a parameter share that has the unknown type 17");
}

TEST(PluginLoader, ChecksParametersAsThoseOfAnyPolicy) {
  std::string message;
  const auto kind = load_policy_plugin(plugin_path("hold_all"), message);
  ASSERT_TRUE(kind) << message;
  const auto problem = [&](std::string key, parameter_value value) {
    parameters given;
    given.set(std::move(key), std::move(value));
    EXPECT_FALSE(make_policy(*kind, given, message));
    return message;
  };
  EXPECT_EQ(problem("hold_for", 2h), "hold_for is 2h; it must be 0ns to 1min");
  EXPECT_THAT(problem("hold", 2s), StartsWith("hold is not a parameter of this policy; "));
  // What the plugin itself refuses; one line whatever it says.
  EXPECT_EQ(problem("hold_for", 13ms), "hold_for is 13ms, which brings bad luck; choose another");
}

TEST(PluginLoader, ReportsAPolicyThatCannotBeMadeBecauseOfAnException) {
  std::string message;
  const auto kind = load_policy_plugin(plugin_path("throwing"), message);
  ASSERT_TRUE(kind) << message;
  parameters given;
  given.set("where", std::string("make"));
  EXPECT_FALSE(make_policy(*kind, given, message));
  EXPECT_EQ(message, "thrown in make()");
}

// Loading ---------------------------------------------------------------------------------------

bool is_loaded(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

TEST(PluginLoader, KeepsALibraryForAsLongAsAPolicyOfItLives) {
  const auto path = plugin_path("hold_all");
  ASSERT_FALSE(is_loaded(path));
  auto made = make_from("hold_all");  // Its registry and kind are gone already.
  EXPECT_TRUE(is_loaded(path));
  EXPECT_EQ(made->name(), "hold_all");
  auto second = make_from("hold_all");
  made.reset();
  EXPECT_TRUE(is_loaded(path));
  EXPECT_EQ(second->name(), "hold_all");
  second.reset();
  EXPECT_FALSE(is_loaded(path));
}

/// The wrapper's static data is each library's own.
TEST(PluginLoader, TakesSeveralLibrariesOfTheSameWrapperAtOnce) {
  std::string message;
  policy_registry registry;
  ASSERT_TRUE(registry.load(plugin_path("throwing"), message)) << message;
  ASSERT_TRUE(registry.load(built_in("fixed_timeslice"), message)) << message;
  EXPECT_EQ(registry.names(), (std::vector<std::string_view>{"fixed_timeslice", "throwing"}));
  const auto made = registry.make("fixed_timeslice", {}, message);
  ASSERT_TRUE(made) << message;
  EXPECT_EQ((*made)->name(), "fixed_timeslice/client_done");
}

/// All but those that wrap another, which stay in the program.
std::vector<policy_kind> exported() {
  auto all = all_policies();
  std::erase_if(all, [](const policy_kind& each) { return each.wrap != nullptr; });
  return all;
}

TEST(PluginLoader, GivesTheSameKindsThatTheLibrariesWereBuiltFrom) {
  for (const policy_kind& direct : exported()) {
    std::string message;
    const auto loaded = load_policy_plugin(built_in(direct.name), message);
    ASSERT_TRUE(loaded) << message;
    EXPECT_EQ(loaded->name, direct.name);
    EXPECT_EQ(loaded->summary, direct.summary);
    ASSERT_EQ(loaded->schema.size(), direct.schema.size());
    for (std::size_t i = 0; i < direct.schema.size(); ++i) {
      const parameter& a = loaded->schema[i];
      const parameter& b = direct.schema[i];
      EXPECT_EQ(a.key, b.key);
      EXPECT_EQ(a.fallback, b.fallback) << a.key;
      EXPECT_EQ(a.optional, b.optional) << a.key;
      EXPECT_EQ(a.help, b.help) << a.key;
      EXPECT_EQ(range_text(a), range_text(b)) << a.key;
    }
  }
}

class PluginInConfiguration : public ::testing::Test {
 protected:
  PluginInConfiguration() {
    std::filesystem::copy_file(plugin_path("hold_all"), here_.path() + "/hold_all.so");
  }
  result<std::unique_ptr<policy>> load(const std::string& content) {
    path_ = here_.write("sluice.toml", content);
    return load_policy(known_, path_, "fixed_timeslice", message_, &text_);
  }
  policy_registry known_;
  const folder here_;
  std::string path_;
  std::string message_;
  std::string text_;
};

TEST_F(PluginInConfiguration, IsFoundBesideTheFileOrByItsWholePath) {
  auto made = load("[policy]\nplugin = \"hold_all.so\"\nhold_for = \"5ms\"\n");
  ASSERT_TRUE(made) << message_;
  EXPECT_EQ((*made)->name(), "hold_all");
  EXPECT_EQ(text_, here_.path() + "/hold_all.so:fail_at=0,hold_for=5ms,sleep=0ns");
  made = load("[policy]\nname = \"hold_all\"\nplugin = \"" + plugin_path("hold_all") + "\"\n");
  ASSERT_TRUE(made) << message_;
  EXPECT_EQ((*made)->name(), "hold_all");
}

TEST_F(PluginInConfiguration, CanBeWrapped) {
  static std::string wrapped;
  known_.add({.name = "around", .summary = "", .schema = {}, .make = {}, .wrap = [](auto other) {
                wrapped = other->name();
                return other;
              }});
  const auto made = load("[policy]\nname = \"around\"\nplugin = \"hold_all.so\"\n");
  ASSERT_TRUE(made) << message_;
  EXPECT_EQ(wrapped, "hold_all");
  EXPECT_EQ(text_, "") << "no command line can say that";
}

TEST_F(PluginInConfiguration, IsRefusedWithFileAndLine) {
  EXPECT_EQ(load("[policy]\n\nplugin = \"nonesuch.so\"\n").error().value(), ENOENT);
  EXPECT_EQ(message_, path_ + ":3: " + here_.path() +
                          "/nonesuch.so: cannot be read: No such file or directory");
  EXPECT_EQ(load("[policy]\nplugin = \"hold_all.so\"\n\nhold_for = \"2h\"\n").error(),
            errc::bad_config);
  EXPECT_EQ(message_, path_ + ":4: hold_for is 2h; it must be 0ns to 1min");
  EXPECT_FALSE(load("[policy]\nplugin = \"hold_all.so\"\nname = \"slo\"\n"));
  EXPECT_EQ(message_, path_ + ":3: name is slo, but plugin " + here_.path() +
                          "/hold_all.so contains policy hold_all; remove name or plugin");
  EXPECT_FALSE(load("[policy]\nplugin = 5\n"));
  EXPECT_EQ(message_, path_ + ":2: plugin must be a file's path in quotes");
}

// Through C and back ----------------------------------------------------------------------------

/// What the policy behind the bridge does, set by each test.
function_policy::body through_c;

policy_kind bridged_kind() {
  return {.name = "bridged",
          .summary = "what a test wants",
          .schema = {parameter::flag("flag", false, "a flag"),
                     parameter::count("count", 4, -5, 8, "a count"),
                     parameter::number("number", 0.1, 0, 1, "a number"),
                     parameter::span("span", 20ms, 1ns, 1h, "a span"),
                     parameter::span("of.*", 20ms, 1ns, 1h, "spans"),
                     parameter::text("text", "default", "a text"),
                     parameter::text("more", "", "another").but_optional()},
          .make = [](const parameters& values, std::string& problem) -> std::unique_ptr<policy> {
            if (!values.flag("flag")) return make_policy(through_c);
            for (const auto& [key, value] : values.all())
              problem += key + " " + to_text(value) + ", ";
            return nullptr;
          }};
}

policy_kind there_and_back() {
  std::string message;
  auto kind = make_plugin_kind(plugin::exporter<bridged_kind>::descriptor(), nullptr, message);
  EXPECT_TRUE(kind) << message;
  return *kind;
}

std::unique_ptr<policy> bridged(function_policy::body body) {
  through_c = std::move(body);
  std::string message;
  auto made = make_policy(there_and_back(), {}, message);
  EXPECT_TRUE(made) << message;
  return std::move(*made);
}

/// A later version of the same ABI adds members at its end.
TEST(PluginBridge, TakesADescriptorThatHasGrown) {
  struct grown {
    sluice_policy_plugin known;
    void* added;
  } later{*plugin::exporter<bridged_kind>::descriptor(), nullptr};
  later.known.struct_size = sizeof later;
  std::string message;
  const auto kind = make_plugin_kind(&later.known, nullptr, message);
  ASSERT_TRUE(kind) << message;
  EXPECT_EQ(kind->name, "bridged");
}

/// One that was built before the last members were added says that it is shorter. What lies behind
/// it is not its own.
TEST(PluginBridge, TakesADescriptorFromBeforeItHasGrown) {
  sluice_policy_plugin earlier = *plugin::exporter<bridged_kind>::descriptor();
  earlier.struct_size = offsetof(sluice_policy_plugin, name_of);
  earlier.name_of = [](const void*) -> const char* { std::abort(); };
  earlier.needs_marks = [](const void*) -> uint32_t { std::abort(); };
  through_c = [](const snapshot&, decision_sink&) {};
  std::string message;
  const auto kind = make_plugin_kind(&earlier, nullptr, message);
  ASSERT_TRUE(kind) << message;
  const auto made = make_policy(*kind, {}, message);
  ASSERT_TRUE(made) << message;
  EXPECT_EQ((*made)->name(), "bridged");
  EXPECT_TRUE((*made)->needs_marks().empty());

  --earlier.struct_size;
  EXPECT_FALSE(make_plugin_kind(&earlier, nullptr, message)) << "without the whole of destroy()";
}

TEST(PluginBridge, SaysWhichMarksItNeeds) {
  std::string message;
  const auto loaded = load_policy_plugin(built_in("slo"), message);
  ASSERT_TRUE(loaded) << message;
  parameters given;
  given.set("request.p99", 1s);
  given.set("itl.p99", 100ms);
  const auto made = make_policy(*loaded, given, message);
  ASSERT_TRUE(made) << message;
  const auto needs = (*made)->needs_marks();
  EXPECT_EQ(std::vector(needs.begin(), needs.end()),
            (std::vector{span_kind::request, span_kind::itl}));
  EXPECT_TRUE(bridged([](const snapshot&, decision_sink&) {})->needs_marks().empty());
}

TEST(PluginBridge, NamesTheFunctionThatADescriptorLacks) {
  const auto without = [](auto sluice_policy_plugin::*which) {
    sluice_policy_plugin broken = *plugin::exporter<bridged_kind>::descriptor();
    broken.*which = nullptr;
    std::string message;
    EXPECT_FALSE(make_plugin_kind(&broken, nullptr, message));
    return message;
  };
  EXPECT_EQ(without(&sluice_policy_plugin::create), "has a descriptor without create()");
  EXPECT_EQ(without(&sluice_policy_plugin::decide), "has a descriptor without decide()");
  EXPECT_EQ(without(&sluice_policy_plugin::destroy), "has a descriptor without destroy()");
}

TEST(PluginBridge, SpeaksForAPluginThatFailsWithoutAWord) {
  static int state = 0;
  sluice_policy_plugin mute{};
  mute.abi_version = SLUICE_PLUGIN_ABI;
  mute.struct_size = sizeof mute;
  mute.name = "mute";
  mute.create = [](const sluice_value*, size_t, char*, size_t) -> void* { return nullptr; };
  mute.decide = [](void*, const sluice_snapshot*, const sluice_sink*, char*, size_t) { return 1; };
  mute.destroy = [](void*) {};
  std::string message;
  auto kind = make_plugin_kind(&mute, nullptr, message);
  ASSERT_TRUE(kind) << message;
  EXPECT_FALSE(make_policy(*kind, {}, message));
  EXPECT_EQ(message, "policy mute: create() failed without a reason");

  mute.create = [](const sluice_value*, size_t, char*, size_t) -> void* { return &state; };
  kind = make_plugin_kind(&mute, nullptr, message);
  ASSERT_TRUE(kind) << message;
  const auto made = make_policy(*kind, {}, message);
  ASSERT_TRUE(made) << message;
  testing::fake_world table;
  testing::recording_sink sink;
  try {
    (*made)->decide({time_point{1s}, 1, {}, {}, table}, sink);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& thrown) {
    EXPECT_STREQ(thrown.what(), "its decide() failed without a reason");
  }
}

TEST(PluginBridge, CarriesParametersOfEveryType) {
  parameters given;
  given.set("flag", true);
  given.set("count", std::int64_t{-5});
  given.set("number", 0.25);
  given.set("of.7", std::string("3us"));
  std::string message;
  EXPECT_FALSE(make_policy(there_and_back(), given, message));
  EXPECT_EQ(message, "count -5, flag true, number 0.25, of.7 3us, span 20ms, text \"default\", ");
}

void expect_same(const gpu_view& a, const gpu_view& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.online_in_flight, b.online_in_flight);
  EXPECT_EQ(a.lost, b.lost);
  EXPECT_EQ(a.can_reserve, b.can_reserve);
  EXPECT_EQ(a.can_set_quantum, b.can_set_quantum);
  EXPECT_EQ(a.can_see_work, b.can_see_work);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.suspend_cost, b.suspend_cost);
  EXPECT_EQ(a.resume_cost, b.resume_cost);
  EXPECT_EQ(a.work, b.work);
  EXPECT_EQ(a.last_move, b.last_move);
  EXPECT_EQ(a.last_begin, b.last_begin);
  EXPECT_EQ(a.last_end, b.last_end);
  EXPECT_TRUE(std::ranges::equal(a.offline, b.offline));
}

void expect_same(const group_view& a, const group_view& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.what, b.what);
  EXPECT_EQ(a.actual, b.actual);
  EXPECT_EQ(a.manageable, b.manageable);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_EQ(a.queues, b.queues);
  EXPECT_TRUE(std::ranges::equal(a.gpus, b.gpus));
  EXPECT_TRUE(std::ranges::equal(a.queues_on, b.queues_on));
  EXPECT_EQ(a.state_since, b.state_since);
}

void expect_same(const event& a, const event& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.gpu, b.gpu);
  EXPECT_EQ(a.client, b.client);
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.at, b.at);
  EXPECT_EQ(a.span, b.span);
  EXPECT_EQ(a.request, b.request);
  EXPECT_EQ(a.length, b.length);
}

/// Every field has a value of its own, so that one that is forgotten or mistaken for another shows.
TEST(PluginBridge, ShowsTheSameSnapshot) {
  const time_point now{5h};
  const std::vector<event> events{
      {event_kind::online_begin, gpu_id{3}, client_id{11}, 12, now - 13ns, {}, 0, {}},
      {event_kind::span_end, {}, client_id{14}, 1, now - 15ns, span_kind::itl, 16, 17ns},
      {event_kind::span_abandoned, {}, client_id{14}, 1, now, span_kind::ttft, 18, 19ns}};
  const std::vector<group_id> offline{group_id{0xa00000000b}, group_id{21}};
  const std::vector<group_id> changed{group_id{21}, group_id{22}};
  const std::vector<gpu_id> group_gpus{gpu_id{3}, gpu_id{4}};
  const std::vector<std::uint32_t> queues_on{31, 32};
  struct table final : world {
    std::vector<gpu_view> all;
    group_view one;
    client_view client;
    std::span<const gpu_view> gpus() const noexcept override { return all; }
    const gpu_view* find(gpu_id id) const noexcept override {
      return id == all[0].id ? &all[0] : id == all[1].id ? &all[1] : nullptr;
    }
    const group_view* find(group_id id) const noexcept override {
      return id == one.id ? &one : nullptr;
    }
    const client_view* find(client_id id) const noexcept override {
      return id == client.id ? &client : nullptr;
    }
  } original;
  original.all = {
      {gpu_id{3}, 41, false, true, false, true, 42, 43ns, 44ns, online_work::consumed, now - 45ns,
       now - 46ns, now - 47ns, offline},
      {gpu_id{4}, 0, true, false, true, false, 0, {}, {}, online_work::waiting, {}, {}, {}, {}}};
  original.one = {group_id{21}, role::offline, run_state::mixed, true,      15,
                  51,           group_gpus,    queues_on,        now - 52ns};
  original.client = {client_id{14}, "a name", group_gpus, {65ns, 66ns, 67ns}};
  const snapshot shown{now, 77, events, changed, original};

  int calls = 0;
  const auto subject = bridged([&](const snapshot& seen, decision_sink& out) {
    ++calls;
    EXPECT_EQ(seen.now, now);
    EXPECT_EQ(seen.turn, 77U);
    ASSERT_EQ(seen.events.size(), events.size());
    for (std::size_t i = 0; i < events.size(); ++i) expect_same(seen.events[i], events[i]);
    EXPECT_TRUE(std::ranges::equal(seen.changed, changed));
    ASSERT_EQ(seen.table.gpus().size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) expect_same(seen.table.gpus()[i], original.all[i]);
    ASSERT_NE(seen.table.find(gpu_id{4}), nullptr);
    EXPECT_EQ(seen.table.find(gpu_id{4}), &seen.table.gpus()[1]);
    EXPECT_EQ(seen.table.find(gpu_id{5}), nullptr);
    const group_view* const group = seen.table.find(group_id{21});
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(seen.table.find(group_id{22}), nullptr);
    ASSERT_NE(seen.table.find(group_id{21}), nullptr);
    expect_same(*group, original.one);
    const client_view* const client = seen.table.find(client_id{14});
    ASSERT_NE(client, nullptr);
    EXPECT_EQ(seen.table.find(client_id{15}), nullptr);
    EXPECT_EQ(client->id, client_id{14});
    EXPECT_EQ(client->name, "a name");
    EXPECT_TRUE(std::ranges::equal(client->gpus, group_gpus));
    EXPECT_EQ(client->targets, original.client.targets);
    out.hold(group_id{0xa00000000b}, never);
    out.run(group_id{21});
    out.wake_at(now + 61ns);
    out.poll_pointers(62ns);
    out.reserve(gpu_id{3}, 0.625);
    out.set_quantum(group_id{21}, 68ns);
    out.listen(span_kind::itl, true);
    out.note("{} of {}", std::array{63.0, 64.0});
  });
  testing::recording_sink sink;
  subject->decide(shown, sink);
  subject->decide(shown, sink);  // The second turn has nothing of the first.
  EXPECT_EQ(calls, 2);
  using verb = testing::recording_sink::verb;
  ASSERT_EQ(sink.calls.size(), 16U);
  sink.calls.resize(8);
  const std::vector<testing::recording_sink::call> expected{
      {.what = verb::hold, .group = group_id{0xa00000000b}, .until = never},
      {.what = verb::run, .group = group_id{21}},
      {.what = verb::wake_at, .until = now + 61ns},
      {.what = verb::poll_pointers, .every = 62ns},
      {.what = verb::reserve, .gpu = gpu_id{3}, .offline_share = 0.625},
      {.what = verb::set_quantum, .group = group_id{21}, .length = 68ns},
      {.what = verb::listen, .span = span_kind::itl, .at_once = true},
      {.what = verb::note, .text = "{} of {}", .numbers = {63, 64}}};
  EXPECT_EQ(sink.calls, expected);
}

TEST(PluginBridge, TurnsExceptionsIntoOnesOfThisSide) {
  testing::fake_world table;
  testing::recording_sink sink;
  const auto run = [&](const char* where) {
    parameters given;
    given.set("where", std::string(where));
    const auto subject = make_from("throwing", given);
    try {
      subject->decide({time_point{1s}, 1, {}, {}, table}, sink);
    } catch (const std::runtime_error& thrown) {
      return std::string(thrown.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(run("decide"), "thrown in decide()");
  EXPECT_EQ(run("number"), "it threw an object that is not a std::exception");
}

/// The check plays each sequence to two instances and compares what they say: here the second is
/// the plugin.
TEST(PluginBridge, DecidesAsThePolicyThatItWraps) {
  for (const policy_kind& direct : exported()) {
    std::string message;
    const auto loaded = load_policy_plugin(built_in(direct.name), message);
    ASSERT_TRUE(loaded) << message;
    parameters given;
    if (direct.name == "slo") given.set("request.p99", 100ms);  // It wants a target.
    int made = 0;
    const auto either = [&] {
      auto one = make_policy(++made % 2 == 0 ? *loaded : direct, given, message);
      EXPECT_TRUE(one) << message;
      return std::move(*one);
    };
    const auto failure =
        testing::check_policy(either, {.sequences = 300, .patience = duration::zero()});
    EXPECT_FALSE(failure) << direct.name << ": " << failure->text();
    EXPECT_GE(made, 600);
  }
}

// In a scheduler --------------------------------------------------------------------------------

TEST(PluginInScheduler, HoldsAndIsRemovedWhenItSaysThatItFailed) {
  parameters given;
  given.set("fail_at", std::int64_t{1000});
  core_bench bench(quick_config(), make_from("hold_all", given));
  bench.create(100, role::offline, gpu_a, {0, 1});
  auto client = bench.client();
  bench.attach_all();
  EXPECT_EQ(bench.driver.suspended_count(), 2U);
  for (int i = 0; i < 1000; ++i) {
    client.begin();
    client.end();
    bench.step();
  }
  bench.settle();
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
}

TEST(PluginInScheduler, IsRemovedWhenItThrows) {
  core_bench bench(quick_config(), make_from("throwing"));
  bench.create(100, role::offline, gpu_a, {0});
  bench.settle();
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
}

/// The time limit is of real time, so the clock is, too.
TEST(PluginInScheduler, IsRemovedWhenItIsLateThreeTimesAndWhatItHeldRuns) {
  auto config = quick_config();
  config.policy_time_limit = 1ms;
  config.attach_after = 0ns;
  config.max_suspend = 60s;
  static const steady_time real;
  testing::scripted_backend driver(real);
  parameters given;
  given.set("sleep", 2ms);
  auto made = scheduler_core::create(config, driver, nullptr, {.time = &real});
  ASSERT_TRUE(made);
  scheduler_core& core = **made;
  ASSERT_TRUE(core.start());
  driver.add_queue(100, q(0), gpu_a);
  observation seen;
  seen.pid = 100;
  seen.start_time = start_time;
  seen.kind = observation_kind::process_seen;
  seen.what = role::offline;
  core.observe(0, seen);
  seen.kind = observation_kind::queue_seen;
  seen.gpu = gpu_a;
  core.observe(0, seen);
  for (int turn = 0; turn < 8; ++turn) core.step();
  ASSERT_EQ(core.stats().attaches, 1U);

  core.set_policy(make_from("hold_all", given));
  auto client = *core.register_client({"test", {gpu_a}, 1s});
  for (int late = 0; late < 3; ++late) {
    EXPECT_EQ(core.stats().policy_ejections, 0U);
    EXPECT_EQ(driver.suspended_count(), late == 2 ? 1U : 0U);
    client.begin();
    core.step();
  }
  EXPECT_EQ(core.stats().policy_ejections, 1U);
  core.step();
  EXPECT_EQ(driver.suspended_count(), 0U);
}

/// Its library can be replaced then.
TEST(PluginInScheduler, IsUnloadedOnceAnotherPolicyHasTakenOver) {
  core_bench bench(quick_config(), make_from("hold_all"));
  bench.create(100, role::offline, gpu_a, {0, 1});
  bench.attach_all();
  ASSERT_EQ(bench.driver.suspended_count(), 2U);
  bench.core->set_policy(make_from("throwing"));
  EXPECT_TRUE(is_loaded(plugin_path("hold_all")));
  bench.settle();
  EXPECT_FALSE(is_loaded(plugin_path("hold_all")));
  EXPECT_FALSE(is_loaded(plugin_path("throwing"))) << "it threw";
  EXPECT_EQ(bench.stats().policy_ejections, 1U);
  EXPECT_EQ(bench.driver.suspended_count(), 0U);
}

}  // namespace
}  // namespace sluice::tests::plugin_test
