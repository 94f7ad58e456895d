// Which kernels this processor gets: the default device takes the best instruction set, and one that is missing is refused instead of run.
// Usage: isa_test [NAME]; NAME is the set that must be the best one here (an emulated processor is known beforehand).
#include <cstdio>
#include <cstring>
#include <string>

#include "../../kernels/bao.h"
#include "../../kernels/cpu/features.h"

namespace {

int failures = 0;
void expect(bool holds, const std::string& what) {
  if (holds) return;
  failures++;
  std::printf("FAIL %s\n", what.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string best = bao::isa_name(bao::best_isa());
  for (int32_t isa : {BAO_ISA_BASE, BAO_ISA_AVX2, BAO_ISA_AVX512, BAO_ISA_NEON}) {
    const std::string name = bao::isa_name(isa);
    bao_handle device = bao_device_open(0, 1, isa, BAO_EXACT, 0);
    expect((device != 0) == bao::has_isa(isa), name + " opens exactly where the processor has it");
    if (device) expect(bao_device_close(device) == BAO_OK, name + " closes");
    else expect((bao_last_status() & 0xFF) == BAO_UNSUPPORTED && std::strstr(bao_last_error(), best.c_str()), name + ": " + bao_last_error());
  }
  bao_handle device = bao_device_open(0, 1, BAO_ISA_AUTO, BAO_EXACT, 0);
  const std::string info = device ? bao_device_info(device) : bao_last_error();
  expect(info.find("\"isa\":\"" + best + "\"") != std::string::npos, "the default device runs " + best + ": " + info);
  if (argc > 1) expect(best == argv[1], "the best is " + best + ", expected " + argv[1]);
  std::printf("isa: %s, %d failed\n", best.c_str(), failures);
  return failures ? 1 : 0;
}
