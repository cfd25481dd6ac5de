// usage: node schemas.mjs <OBJECTS: checks Kubernetes objects, a JSON list, against the API's published schemas. Prints
// what is wrong with each, and then exits with code 1. Node resolves modules beside the script, so tools.sh copies it.
// The validators of kubernetes-models are made of these schemas, which permit unknown fields. TypeScript finds those, by
// the types that the same package makes of the schemas.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const objects = JSON.parse(readFileSync(0, "utf8"));
const problems = [];
let source = "";
for (const [index, object] of objects.entries()) {
  const path = `kubernetes-models/${object.apiVersion}/${object.kind}`;
  const { [object.kind]: model } = await import(path);
  try {
    new model(object).validate();
  } catch (error) {
    problems.push(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
  source += `import type {I${object.kind} as T${index}} from "${path}"; const o${index}: T${index} = ${JSON.stringify(object)};\n`;
}
const file = fileURLToPath(new URL("objects.ts", import.meta.url));
const host = ts.createCompilerHost({});
const read = host.getSourceFile;
host.getSourceFile = (name, ...how) =>
  name === file ? ts.createSourceFile(name, source, ts.ScriptTarget.Latest) : read(name, ...how);
const options = {
  noEmit: true, strict: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.Latest,
  module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext,
};
for (const each of ts.getPreEmitDiagnostics(ts.createProgram([file], options, host))) {
  const message = ts.flattenDiagnosticMessageText(each.messageText, "; ");
  const line = each.file?.getLineAndCharacterOfPosition(each.start).line;
  const of = each.file?.fileName === file ? objects[line] : undefined;
  problems.push(of ? `${of.kind} ${of.metadata.name}: ${message}` : message);
}
problems.forEach((each) => console.log(each));
process.exitCode = problems.length === 0 ? 0 : 1;
