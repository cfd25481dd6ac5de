// sluice-agent: the process that acts, with the drivers that it knows.

#include "sluice/agent/acting_driver.hpp"
#include "sluice/kfd/acting_driver.hpp"
#include "sluice/nvidia/acting_driver.hpp"

int main(int argc, char** argv) {
  return sluice::agent::run_agent(
      argc, argv, {sluice::kfd::make_acting_driver, sluice::nvidia::make_acting_driver});
}
