// Files that a compiled program carries: imported with { type: "file" }, they are their path.
declare module "*.so" { const path: string; export default path; }
declare module "*.dylib" { const path: string; export default path; }
declare module "*/engine-worker.js" { const path: string; export default path; }
