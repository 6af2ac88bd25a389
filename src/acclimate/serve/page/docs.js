/* Show the API documentation with Swagger UI: a list of all operations, each with a form to try it out. */
const token = sessionStorage.getItem("acclimate-token"); // set by the page, if it was opened in this tab before
const ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  filter: true,
  tryItOutEnabled: true,
  validatorUrl: null, // keeps it from asking another host
  onComplete: () => token === null || ui.preauthorizeApiKey("HTTPBearer", token),
});
