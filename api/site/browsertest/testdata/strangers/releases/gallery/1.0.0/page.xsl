<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:template match="/"><html><head><title>Transformed</title></head><body><p>Transformed</p></body></html></xsl:template>
</xsl:stylesheet>
