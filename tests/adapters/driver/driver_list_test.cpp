#include "sluice/driver_list.hpp"

#include "stub_driver.hpp"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::driver_list_test {
namespace {

using test::stub_driver;
using testing::ElementsAre;

std::shared_ptr<driver> present(const std::string& name) {
  return std::make_shared<stub_driver>(name);
}
std::shared_ptr<driver> absent(const std::string& name) {
  return std::make_shared<stub_driver>(name, "/dev/" + name + " does not exist; load it");
}

/// The name of the one chosen, or else why none is.
std::string chosen(const drivers& all, std::string_view name = any_driver) {
  std::string message;
  const auto found = choose_driver(all, name, message);
  return found ? std::string{(*found)->name()} : message;
}

TEST(DriverChoice, IsTheOnlyOnePresent) {
  EXPECT_EQ(chosen({present("one")}), "one");
  EXPECT_EQ(chosen({absent("one"), present("two")}), "two");
}

TEST(DriverChoice, IsTheOnlyOneKnownWhereItIsAbsent) {
  EXPECT_EQ(chosen({absent("one")}), "one") << "what it says next explains more";
  EXPECT_EQ(chosen({absent("one"), absent("two")}),
            "no driver is present: one: /dev/one does not exist; load it; two: /dev/two does not "
            "exist; load it");
}

TEST(DriverChoice, IsNotGuessedBetweenTwo) {
  const drivers both{present("one"), present("two")};
  EXPECT_EQ(chosen(both),
            "several drivers are present: one, two; set driver of [daemon], or --driver, to one of "
            "them");
  EXPECT_EQ(chosen(both, "two"), "two");
}

TEST(DriverChoice, IsByNameWhateverIsPresent) {
  EXPECT_EQ(chosen({absent("one"), present("two")}, "one"), "one");
  EXPECT_EQ(chosen({present("one"), present("two")}, "three"),
            "unknown driver 'three'; available: one, two");
}

TEST(DriverCandidates, AreAllThatArePresent) {
  const drivers all{present("one"), absent("two"), present("three")};
  EXPECT_THAT(driver_names(candidates(all, any_driver)), ElementsAre("one", "three"));
  EXPECT_THAT(driver_names(candidates(all, "two")), ElementsAre("two"));
  EXPECT_THAT(driver_names(candidates({absent("one")}, any_driver)), ElementsAre("one"));
  EXPECT_TRUE(candidates({absent("one"), absent("two")}, any_driver).empty());
}

TEST(DriverSettings, AreTakenByKeyAndType) {
  stub_driver one{"one"};
  EXPECT_EQ(one.set("careful", true), "");
  EXPECT_TRUE(one.careful);
  EXPECT_EQ(one.set("careful", std::string{"yes"}), "must be true or false");
  EXPECT_EQ(one.set("text", std::string{"y"}), "");
  EXPECT_EQ(one.text, "y");
  EXPECT_EQ(one.set("text", false), "must be a string in quotes");
  EXPECT_EQ(one.set("speed", false), "is not a setting of [one]");
}

}  // namespace
}  // namespace sluice::driver_list_test
