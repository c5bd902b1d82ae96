// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "service/get/steps.h"

namespace cairn {

Answer Send(GetContext& context, Transcoded transcoded) {
  Answer answer;
  answer.reply = {.form = context.get.form,
                  .tier = static_cast<uint8_t>(transcoded.facts.tier),
                  .first_position = transcoded.facts.first_position,
                  .source_bytes = context.source_bytes};
  answer.payload = transcoded.payload;
  answer.payload_crc32c = transcoded.crc32c;
  answer.pin = std::move(transcoded.pin);
  answer.staging = std::move(transcoded.staging);
  return answer;
}

}  // namespace cairn
