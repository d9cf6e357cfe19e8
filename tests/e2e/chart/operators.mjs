// Objects of KEDA and of the Prometheus operator, as JSON on standard input, against their own schemas.
//   node operators.mjs NODE_MODULES
// Prints a line for each: ok KIND, or BAD KIND and why; "unknown" where there is no schema.
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const schemas = (path) => import(pathToFileURL(`${process.argv[2]}/@kubernetes-models/${path}/index.js`));
const kinds = {
  "keda.sh/v1alpha1": await schemas("keda/keda.sh/v1alpha1"),
  "monitoring.coreos.com/v1": await schemas("prometheus-operator/monitoring.coreos.com/v1"),
};
for (const object of JSON.parse(fs.readFileSync(0, "utf8"))) {
  const Kind = kinds[object.apiVersion]?.[object.kind];
  try {
    if (!Kind) throw new Error("unknown");
    new Kind(object).validate();
    console.log("ok", object.kind);
  } catch (error) {
    console.log("BAD", object.kind, String(error.message).replaceAll("\n", " "));
  }
}
