// Formats of JSON Schema strings as regular expressions, a little narrower than the standards where that keeps them plain.

/** Without the 29th of February: which years have it is no matter of single characters. */
const DATE = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])";
const BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])", HEX = "[0-9a-f]", LABEL = "[a-z0-9]+(-[a-z0-9]+)*";

/** Each matches a subset of its format. */
export const FORMATS: Readonly<Record<string, string>> = {
  date: `^${DATE}$`,
  time: `^${TIME}$`,
  "date-time": `^${DATE}T${TIME}$`,
  duration: "^P([0-9]+D(T([0-9]+H)?([0-9]+M)?[0-9]+S)?|T([0-9]+H)?([0-9]+M)?[0-9]+S|[0-9]+W|[0-9]+Y)$",
  email: `^[a-z0-9_+-]+(\\.[a-z0-9_+-]+)*@(${LABEL}\\.)+[a-z]+$`,
  hostname: `^${LABEL}(\\.${LABEL})*$`,
  ipv4: `^${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}$`,
  uuid: `^${HEX}{8}-${HEX}{4}-[1-8]${HEX}{3}-[89ab]${HEX}{3}-${HEX}{12}$`,
  uri: "^https?://[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*(\\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?$",
};
